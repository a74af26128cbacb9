"""What the scheduler asks an extender, answered from the pool. Pure: JSON in, JSON out, time an argument.

Source: kube-scheduler's extender v1 types, whose Go fields have no JSON tags: capitalised keys, matched without regard to
case. A filter is answered from what is free *now*; between it and the bind the scheduler already filters the next pod, so
the node a pod is likely to get is remembered for a moment and kept from the next pod, where that one has a choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, fields, replace
from itertools import compress
from typing import Any

import numpy as np

from ...base.errors import UsageError
from ..allocation.gpu_selection import GpuSelector, scores
from ..allocation.pool import NEVER, Ints, Pool
from ..allocation.preemption import cheapest_victims, spare_victims
from ..objects import names
from ..objects.gpu_inventory import GpuInventory, read_gpu_inventory
from ..objects.metadata import Json, annotations_of
from ..objects.pod_request import GpuAssignment, PodRequest, beside, marks, read_pod_request, requests_memory
from ..objects.schema import Node, Pod, PreemptionVictims, validated

LIKELY_S = 3.0
"""So long a node is kept for the pod that will probably be bound there; a bind follows its filter within a second."""
STALE_S = 5.0
RESERVED_S = 30.0
"""So long after a bind was decided the pod itself should say so; then the API server is asked."""


@dataclass(frozen=True, slots=True)
class Decision:
    """GPUs chosen for a pod that is to be bound, reserved in the pool; ``notes`` are the pod's new annotations, None for
    one that goes."""

    ask: PodRequest
    assignment: GpuAssignment
    notes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class _Likely:
    ask: PodRequest
    node: str
    until_s: float


@dataclass(slots=True)
class ExtenderHandler:
    """Answers the verbs. ``max_nodes``: names in one question; more are refused."""

    chooser: GpuSelector
    max_nodes: int = 20_000
    _likely: dict[str, _Likely] = field(default_factory=dict)
    _known: dict[str, None] = field(default_factory=dict)

    def filter(self, args: Json, now_s: float, stale_s: float = 0.0) -> dict[str, Any]:
        """ExtenderFilterResult. ``stale_s``: age of the cache, reported where it matters. Raises UsageError for a question
        that makes no sense as such."""
        nodes, names_only = self._nodes(args)
        pod = _pod(args)
        if not requests_memory(pod):
            return _filtered(list(nodes), nodes, names_only, {}, {})
        try:
            ask = read_pod_request(pod)
        except UsageError as error:
            return _filtered([], nodes, names_only, {}, dict.fromkeys(nodes, _line(error)))
        self._learn(ask)
        handler = self._with_new(nodes)
        rows = handler.chooser.pool.rows(nodes)
        fits = handler._reduced(ask, rows, now_s)
        kept = list(compress(nodes, fits.tolist()))
        age = f" (as of {stale_s:.0f} s ago: the API server does not answer)" if stale_s >= STALE_S else ""
        failed, hopeless = handler._reasons(ask, list(compress(nodes, (~fits).tolist())), age)
        if len(kept) == 1:
            self._expect(ask, kept[0], now_s)
        return _filtered(kept, nodes, names_only, failed, hopeless)

    def prioritize(self, args: Json, now_s: float) -> list[dict[str, Any]]:
        """HostPriorityList: 10 for the best node; none is better than another for a pod without GPUs, unless by FGD."""
        nodes, _ = self._nodes(args)
        pod = _pod(args)
        chooser = self._with_new(nodes).chooser
        rows = chooser.pool.rows(nodes)
        try:
            shared = requests_memory(pod)
            ask = read_pod_request(pod) if shared else beside(pod)
            costs = chooser.cost(ask, rows) if shared else chooser.cost_beside(ask, rows)
        except UsageError:
            costs = None
        if costs is None:
            return [{"Host": node, "Score": 0} for node in nodes]
        found = scores(costs)
        if shared and nodes and np.isfinite(costs).any():
            self._expect(ask, list(nodes)[int(costs.argmin())], now_s)
        return [{"Host": node, "Score": score} for node, score in zip(nodes, found, strict=True)]

    def decide(self, pod: Json, node: str, now_s: float, now_ns: int) -> Decision:
        """Choose GPUs of ``node`` for ``pod`` and reserve them. Asked twice, the answer is the same.

        ``now_ns`` is wall-clock time for the annotation. Raises UsageError, in words for the pod's event.
        """
        ask, pool = read_pod_request(pod), self.chooser.pool
        self._likely.pop(ask.uid, None)
        held, inventory = pool.held.get(ask.uid), pool.inventories.get(node)
        if held is not None and held.bound:
            raise UsageError(f"the pod is bound to {held.node} already", "the scheduler will see it")
        if inventory is not None and inventory.published and not inventory.ready:
            raise UsageError(inventory.reason, "the scheduler tries again")
        gpus = self._again(ask, node) or self.chooser.pick(ask, node)
        if not gpus:
            failed, hopeless = self._reasons(ask, [node])
            raise UsageError((failed | hopeless)[node], "the scheduler tries again")
        units = dict.fromkeys(gpus, ask.units)
        assignment = GpuAssignment(ask.uid, ask.namespace, ask.name, node, units, bound=False, priority=ask.priority)
        pool.reserve(assignment, now_s + RESERVED_S)
        pool.load(ask.uid, node, ask.cpu)
        size = next(card.units for card in pool.inventories[node].cards if card.index == min(gpus))
        return Decision(ask, assignment, marks(ask, node, units, size, now_ns))

    def _again(self, ask: PodRequest, node: str) -> tuple[int, ...]:
        """The GPUs of ``node`` that the pod holds, where they are just what it asks; else none. It may have brought its
        annotations along, so they are worth no more than the room that there is."""
        held = self.chooser.pool.held.get(ask.uid)
        if held is None or held.node != node or len(held.units) != ask.count or set(held.units.values()) != {ask.units}:
            return ()
        free = self.chooser.pool.free_of(node, ask.uid)
        return tuple(held.units) if all(free.get(gpu, NEVER) >= ask.units for gpu in held.units) else ()

    def preempt(self, args: Json) -> dict[str, Any]:
        """ExtenderPreemptionResult: nodes where the pod fits after preemption of the proposed victims and as few more as needed.
        A pod without GPUs needs no more than the proposed ones."""
        proposed, pod = self._proposed(args), _pod(args)
        ask = read_pod_request(pod) if requests_memory(pod) else None
        answer = {}
        for node, (asked, violations) in proposed.items():
            chosen = asked if ask is None else self._victims(ask, node, asked)
            if chosen is not None:
                answer[node] = {"Pods": [{"UID": uid} for uid in chosen], "NumPDBViolations": violations}
        return {"NodeNameToMetaVictims": answer}

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._likely.pop(uid, None)
        self._known.pop(uid, None)

    def _victims(self, ask: PodRequest, node: str, asked: Sequence[str]) -> list[str] | None:
        """Who must go from ``node``: all that the scheduler proposed (it needs them for other reasons too), then the
        cheapest of lower priority until ``ask`` fits; None when all of them are not enough."""
        pool = self.chooser.pool
        if node not in pool.row:
            return None
        free = pool.free_of(node, ask.uid)
        chosen = list(asked)
        here = {held.uid: pool.weighed(held) for held in pool.on(node) if held.uid != ask.uid and pool.firm(held.uid)}
        for uid in asked:
            spare_victims(free, here.get(uid))
        lower = [held for held in here.values() if held.priority < ask.priority and held.uid not in chosen]
        more = cheapest_victims(ask, free, lower)
        return None if more is None else chosen + more

    def _learn(self, ask: PodRequest) -> None:
        """Each pod counts once towards what pods look like here, however often it is asked about."""
        if ask.uid not in self._known:
            self._known[ask.uid] = None
            self.chooser.workload.add(ask)
            while len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]

    def _expect(self, ask: PodRequest, node: str, now_s: float) -> None:
        self._likely[ask.uid] = _Likely(ask, node, now_s + LIKELY_S)

    def _reduced(self, ask: PodRequest, rows: Ints, now_s: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Where ``ask`` fits, leaving room for pods on their way to a node, unless it then fits nowhere. Where it holds
        something itself no other pod can use that."""
        pool = self.chooser.pool
        fits = pool.fits(ask, rows)
        for uid in [uid for uid, found in self._likely.items() if found.until_s <= now_s]:
            del self._likely[uid]
        coming = [found for uid, found in self._likely.items() if uid != ask.uid and uid not in pool.held]
        if not coming:
            return fits
        reduced, own = fits.copy(), pool.held.get(ask.uid)
        for node in {found.node for found in coming} - {own.node if own else ""}:
            free = dict(pool.free_of(node))
            for found in coming:
                if found.node == node:
                    for gpu in sorted(free, key=lambda at: free[at]):
                        if free[gpu] >= found.ask.units:
                            free[gpu] -= pool.weight(node, gpu, found.ask.units)
                            break
            if sum(units >= ask.units for units in free.values()) < ask.count:
                reduced[rows == pool.row.get(node, -2)] = False
        return reduced if reduced.any() else fits

    def _reasons(self, ask: PodRequest, nodes: Sequence[str], age: str = "") -> tuple[dict[str, str], dict[str, str]]:
        """Why not there: (another pod's going would help, nothing would).

        The scheduler joins equal texts into one line with a count, so few distinct ones are used and the numbers in them
        are about all of these nodes together.
        """
        pool, failed, hopeless = self.chooser.pool, {}, {}
        rows = pool.rows(nodes)
        most = pool.free_to(ask.uid, rows[rows >= 0]).max(initial=0)
        wants = f"{ask.units} units of {names.MEM} on {'one GPU' if ask.count == 1 else f'each of {ask.count} GPUs'}"
        now = f"the most free on one GPU is {max(int(most), 0)}" if most > NEVER // 2 else "no GPU is usable"
        for node in nodes:
            inventory = pool.inventories.get(node)
            if inventory is None or not inventory.cards:
                hopeless[node] = f"no shared GPUs ({names.MEM}) on the node"
            elif not inventory.ready:
                hopeless[node] = inventory.reason or "its device plugin is not ready"
            elif sum(card.ok and card.units >= ask.units for card in inventory.cards) < ask.count:
                hopeless[node] = f"its GPUs are too few or too small for {wants}"
            else:
                failed[node] = f"Insufficient GPU Memory in one device: wants {wants}, {now}{age}"
        return failed, hopeless

    def _nodes(self, args: Json) -> tuple[Sequence[str] | dict[str, Json], bool]:
        """The nodes asked about, by name; with their objects when those were sent (``nodeCacheCapable: false``)."""
        listed = pick(args, "NodeNames")
        if listed is not None:
            if not isinstance(listed, list) or not all(isinstance(node, str) for node in listed):
                raise UsageError("NodeNames is no list of names", "send what kube-scheduler sends")
            self._not_too_many(len(listed))
            return listed, True
        nodes = pick(args, "Nodes") or {}
        items = nodes.get("items") if isinstance(nodes, Mapping) else None
        if not isinstance(items, list):
            raise UsageError("neither NodeNames nor Nodes", "send what kube-scheduler sends")
        self._not_too_many(len(items))
        return {node["metadata"]["name"]: node for node in (validated(item, Node) for item in items)}, False

    def _with_new(self, nodes: Sequence[str] | Mapping[str, Json]) -> ExtenderHandler:
        """Itself; where the scheduler is a moment ahead of us and sent nodes that we have not heard of, one that knows them
        too, for this answer alone. A request must not change the cache: no event would ever remove such a node."""
        pool = self.chooser.pool
        if not isinstance(nodes, Mapping):
            return self
        new = [
            read_gpu_inventory(node) for name, node in nodes.items() if name not in pool.inventories and _offers(node)
        ]
        if not any(inventory.cards for inventory in new):
            return self
        return replace(self, chooser=GpuSelector(_glimpse(pool, new), self.chooser.policy, self.chooser.workload))

    def _proposed(self, args: Json) -> dict[str, tuple[list[str], int]]:
        """By node: uids of the pods that the scheduler would preempt, and how many disruption budgets that breaks."""
        given = {key: pick(args, key) for key in ("NodeNameToMetaVictims", "NodeNameToVictims")}
        for key, nodes in given.items():
            if nodes is not None and not isinstance(nodes, Mapping):
                raise UsageError(f"{key} is no object", "send what kube-scheduler sends")
        there = [nodes for nodes in given.values() if nodes is not None]
        if not there:
            raise UsageError(f"neither {' nor '.join(given)}", "send what kube-scheduler sends")
        proposed: Mapping[str, Any] = next(filter(None, there), {})
        self._not_too_many(len(proposed))
        return {node: _sent_away(victims) for node, victims in proposed.items()}

    def _not_too_many(self, count: int) -> None:
        if count > self.max_nodes:
            raise UsageError(f"{count} nodes in one question", f"at most {self.max_nodes}")


REMEMBERED = 100_000


def pick(body: Any, key: str) -> Any:
    """``body[key]`` without regard to case, as Go's decoder; None when absent. Raises UsageError when it is no object."""
    if not isinstance(body, Mapping):
        raise UsageError("the body is no JSON object", "send what kube-scheduler sends")
    if key in body:
        return body[key]
    wanted = key.lower()
    return next((value for name, value in body.items() if str(name).lower() == wanted), None)


def _pod(args: Json) -> Json:
    pod = pick(args, "Pod")
    if pod is None:
        raise UsageError("no Pod in the body", "send what kube-scheduler sends")
    return validated(pod, Pod)


def _offers(node: Json) -> bool:
    """Whether its GPUs may be shared: most nodes of a cluster have none, and this is asked for each of them each time."""
    return names.TABLE in annotations_of(node) or names.MEM in ((node.get("status") or {}).get("capacity") or {})


def _glimpse(pool: Pool, inventories: Sequence[GpuInventory]) -> Pool:
    """A copy of ``pool`` that has ``tables`` too. What is shared between the two is never changed in place."""
    kept = {one.name: copy(getattr(pool, one.name)) for one in fields(pool)}
    found = Pool(**kept | {"_unbound": deepcopy(kept["_unbound"])})
    for inventory in inventories:
        found.set_node(inventory)
    return found


def _sent_away(victims: Any) -> tuple[list[str], int]:
    """Uids, each once, and the number of disruption budgets broken, from Victims or MetaVictims."""
    if victims is None:
        return [], 0
    if not isinstance(victims, Mapping):
        raise UsageError("the victims of a node are no object", "send what kube-scheduler sends")
    found = validated({key: pick(victims, key) for key in ("Pods", "NumPDBViolations")}, PreemptionVictims)
    return list(dict.fromkeys(map(_uid, found["Pods"] or ()))), found["NumPDBViolations"] or 0


def _uid(victim: Json) -> str:
    """Of a pod, or of what stands for one where the extender is trusted to know it (``nodeCacheCapable: true``)."""
    uid = pick(victim, "UID")
    if uid is None:
        uid = validated(victim, Pod)["metadata"].get("uid")
    if not isinstance(uid, str) or not uid:
        raise UsageError(f"the uid of a victim is {uid!r}", "send what kube-scheduler sends")
    return uid


def _line(error: UsageError) -> str:
    return f"{error.message}: {error.remedy}" if error.remedy else error.message


def _filtered(
    kept: Sequence[str],
    nodes: Sequence[str] | Mapping[str, Json],
    names_only: bool,
    failed: Mapping[str, str],
    hopeless: Mapping[str, str],
) -> dict[str, Any]:
    whole = None
    if not names_only and isinstance(nodes, Mapping):
        whole = {"metadata": {}, "items": [nodes[name] for name in kept]}
    return {
        "Nodes": whole,
        "NodeNames": list(kept) if names_only else None,
        "FailedNodes": dict(failed),
        "FailedAndUnresolvableNodes": dict(hopeless),
        "Error": "",
    }
