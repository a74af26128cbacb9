"""Nodes: what they offer, who else manages their GPUs, and whether more was given out than there is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ...base.errors import UsageError
from ...base.units import counted
from ..objects import names
from ..objects.gpu_inventory import GpuInventory
from ..objects.heartbeat import before_boot, read
from ..objects.metadata import Json, annotations_of, bound_to, labels_of
from ..objects.pod_request import read_gpu_assignment
from .facts import BAD, NOTE, OK, CheckResult, ClusterFacts, amount, images, some
from .inspect_wide import plugin as beating

LABEL = "gpushare"
OTHERS = {"nvidia.com/gpu": "NVIDIA's device plugin", "hami.io/node-nvidia-register": "HAMi"}
"""Resource or annotation of a node, and whose it is."""
MIB_FROM = 1000
"""More units per GPU than this are MiB: no GPU has so many GiB, and none so few MiB. (gpushare's 100 is too few for an H200.)"""
ORIGINALS = ("k8s-gpushare-plugin", "k8s-gpushare-schd-extender")
"""Parts of the names of gpushare's own images."""


def nodes(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Whether every node that should share GPUs can be used."""
    inventories = facts.inventories()
    for node in facts.nodes:
        name = str(node["metadata"]["name"])
        if labels_of(node).get(LABEL) == "true" and name not in inventories:
            text = f"{name} has the label {LABEL}=true and offers no {names.MEM}"
            yield CheckResult("nodes", BAD, text, f"read the log of the device plugin's pod on {name}")
    wrong = set()
    for name, (inventory, node) in inventories.items():
        found = [*_node(name, inventory, node), *_heartbeat(name, inventory, node, facts.now_s)]
        yield from found
        wrong |= {name for one in found if one.level == BAD}
    yield from _unlike_ours(inventories)
    if not inventories:
        remedy = f"kubectl label node NODE {LABEL}=true, and run the device plugin there"
        yield CheckResult("nodes", BAD, "no node shares GPUs", remedy)
    elif sound := [name for name in inventories if name not in wrong]:
        yield CheckResult("nodes", OK, f"{len(sound)} of {counted(len(inventories), 'node')} ready: {some(sound)}")


def _node(name: str, inventory: GpuInventory, node: Json) -> Iterator[CheckResult]:
    if not inventory.ready:
        yield CheckResult(
            "nodes", BAD, f"{name}: {inventory.reason}", f"read the log of the device plugin's pod on {name}"
        )
    elif not amount(node, names.MEM, "allocatable"):
        text = f"{name}: the kubelet offers no {names.MEM} now: the device plugin is not registered, or every GPU is unhealthy"
        yield CheckResult(
            "nodes", BAD, text, f"look whether the device plugin's pod on {name} runs; it registers by itself"
        )
    if sick := [str(card.index) for card in inventory.cards if not card.ok]:
        remedy = (
            f"when they are well: kubectl -n {names.UNHEALTHY_NAMESPACE} edit configmap {names.UNHEALTHY_PREFIX}{name}"
        )
        yield CheckResult(
            "nodes", NOTE, f"{name}: GPUs {some(sick)} are not used, they are listed as unhealthy", remedy
        )


def _unlike_ours(inventories: Mapping[str, tuple[GpuInventory, Json]]) -> Iterator[CheckResult]:
    """Usable, with less known about them: together, for there may be many."""
    if guessed := [name for name, (inventory, _) in inventories.items() if inventory.ready and not inventory.published]:
        text = f"no GPU table ({names.TABLE}) on {some(guessed)}: the GPUs of a node are taken to be equal"
        yield CheckResult("nodes", NOTE, text, "run our device plugin there if they are not")
    if bare := [name for name, (_, node) in inventories.items() if labels_of(node).get(LABEL) != "true"]:
        text = f"{names.MEM} without the label {LABEL}=true on {some(bare)}: no device plugin of ours runs there"
        yield CheckResult("nodes", NOTE, text, f"kubectl label node NODE {LABEL}=true")


def _heartbeat(name: str, inventory: GpuInventory, node: Json, now_s: float) -> Iterator[CheckResult]:
    """Nodes with gpushare's own plugin have none."""
    text = str(annotations_of(node).get(names.PLUGIN, ""))
    remedy = f"look at the device plugin's pod on {name}; no pod is bound there meanwhile"
    if not text:
        if inventory.published:
            yield CheckResult("nodes", BAD, f"{name}: the device plugin left a GPU table and no heartbeat", remedy)
        return
    state, heartbeat = beating(text, now_s), read(text)
    if state.isupper() or state.startswith("SILENT"):
        yield CheckResult("nodes", BAD, f"{name}: the device plugin's heartbeat is {state}", remedy)
    elif heartbeat is not None and before_boot(heartbeat, node):
        yield CheckResult(
            "nodes", BAD, f"{name}: the device plugin has not registered since the node was started", remedy
        )


def units(facts: ClusterFacts) -> Iterator[CheckResult]:
    """GiB or MiB is a convention of the whole cluster; nothing in the names tells."""
    sizes = {
        name: max((card.units for card in inventory.cards), default=0)
        for name, (inventory, _) in facts.inventories().items()
    }
    big, small = [one for one in sizes if sizes[one] > MIB_FROM], [one for one in sizes if 0 < sizes[one] <= MIB_FROM]
    if big and small:
        text = f"GPUs of {some(big)} look as if counted in MiB, those of {some(small)} in GiB"
        yield CheckResult("units", BAD, text, "give every device plugin the same --memory-unit, then restart them")
    elif big or small:
        yield CheckResult("units", OK, f"{names.MEM} counts {'MiB' if big else 'GiB'}, by the size of the GPUs")


def leftovers(facts: ClusterFacts) -> Iterator[CheckResult]:
    """Two that give out the same GPU do not know of each other."""
    inventories = facts.inventories()
    for name, (inventory, node) in inventories.items():
        for mark, whose in OTHERS.items():
            if amount(node, mark, "allocatable") or mark in annotations_of(node):
                yield _shared(name, whose, inventory.published)
    for pod in facts.pods:
        where = bound_to(pod)
        if any(part in image for image in images(pod) for part in ORIGINALS):
            meta = pod["metadata"]
            text = f"gpushare's own {meta['name']} runs on {where or 'no node yet'}"
            remedy = (
                "fine while you migrate node by node; two of a kind on one node are not (docs/kubernetes-migrate.md)"
            )
            yield CheckResult("left over", NOTE, text, remedy)


def _shared(node: str, whose: str, published: bool) -> CheckResult:
    text = f"{whose} offers the same GPUs on {node}"
    if published:
        remedy = "what its pods use is counted as foreign; better keep the two on different nodes"
        return CheckResult("left over", NOTE, text, remedy)
    remedy = f"take one of the two off {node}: their pods are not counted against each other"
    return CheckResult("left over", BAD, text, remedy)


def overcommitted(facts: ClusterFacts) -> Iterator[CheckResult]:
    """More given out on a GPU than it has."""
    given = _given(facts)
    inventories = facts.inventories()
    found = 0
    for (node, gpu), used in sorted(given.items()):
        if node not in inventories:
            continue
        size = next((card.units for card in inventories[node][0].cards if card.index == gpu), None)
        if size is None or used > size:
            found += 1
            has = "does not exist" if size is None else f"has {size}"
            text = f"GPU {gpu} of {node} {has}, and pods hold {counted(used, 'unit')} of it"
            yield CheckResult(
                "over-committed", BAD, text, f"tide kube inspect -d {node} shows them; delete one of the pods"
            )
    if not found:
        yield CheckResult(
            "over-committed", OK, f"no GPU: {counted(sum(given.values()), 'unit')} held on {counted(len(given), 'GPU')}"
        )


def _given(facts: ClusterFacts) -> Mapping[tuple[str, int], int]:
    """Units by node and GPU of bound pods. What cannot be read counts nowhere; inspect says so."""
    given: Counter[tuple[str, int]] = Counter()
    for pod in facts.ours():
        try:
            held = read_gpu_assignment(pod)
        except UsageError:
            continue
        if held is not None and held.bound:
            given.update({(held.node, gpu): count for gpu, count in held.units.items()})
    return given
