"""Nodes: what they offer, who else manages their GPUs, and whether more was given out than there is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ..base.errors import UsageError
from . import names
from .ask import Json, bound_to, holding_of, labels_of, notes_of
from .beat import before_boot, read
from .cards import Table
from .doctor_facts import BAD, NOTE, OK, Facts, Finding, amount, images, some
from .wide import plugin as beating

LABEL = "gpushare"
OTHERS = {"nvidia.com/gpu": "NVIDIA's device plugin", "hami.io/node-nvidia-register": "HAMi"}
"""Resource or annotation of a node, and whose it is."""
MIB_FROM = 1000
"""More units per GPU than this are MiB: no GPU has so many GiB, and none so few MiB. (gpushare's 100 is too few for an H200.)"""
ORIGINALS = ("k8s-gpushare-plugin", "k8s-gpushare-schd-extender")
"""Parts of the names of gpushare's own images."""


def nodes(facts: Facts) -> Iterator[Finding]:
    """Whether every node that should share GPUs can be used."""
    tables = facts.tables()
    for node in facts.nodes:
        name = str(node["metadata"]["name"])
        if labels_of(node).get(LABEL) == "true" and name not in tables:
            text = f"{name} has the label {LABEL}=true and offers no {names.MEM}"
            yield Finding("nodes", BAD, text, f"read the log of the device plugin's pod on {name}")
    wrong = set()
    for name, (table, node) in tables.items():
        found = [*_node(name, table, node), *_heartbeat(name, table, node, facts.now_s)]
        yield from found
        wrong |= {name for one in found if one.level == BAD}
    yield from _unlike_ours(tables)
    if not tables:
        remedy = f"kubectl label node NODE {LABEL}=true, and run the device plugin there"
        yield Finding("nodes", BAD, "no node shares GPUs", remedy)
    elif sound := [name for name in tables if name not in wrong]:
        yield Finding("nodes", OK, f"{len(sound)} of {len(tables)} nodes are ready: {some(sound)}")


def _node(name: str, table: Table, node: Json) -> Iterator[Finding]:
    if not table.ready:
        yield Finding("nodes", BAD, f"{name}: {table.note}", f"read the log of the device plugin's pod on {name}")
    elif not amount(node, names.MEM, "allocatable"):
        text = f"{name}: the kubelet offers no {names.MEM} now: the device plugin is not registered, or every GPU is unhealthy"
        yield Finding(
            "nodes", BAD, text, f"look whether the device plugin's pod on {name} runs; it registers by itself"
        )
    if sick := [str(card.index) for card in table.cards if not card.ok]:
        remedy = (
            f"when they are well: kubectl -n {names.UNHEALTHY_NAMESPACE} edit configmap {names.UNHEALTHY_PREFIX}{name}"
        )
        yield Finding("nodes", NOTE, f"{name}: GPUs {some(sick)} are not used, they are listed as unhealthy", remedy)


def _unlike_ours(tables: Mapping[str, tuple[Table, Json]]) -> Iterator[Finding]:
    """Usable, with less known about them: together, for there may be many."""
    if guessed := [name for name, (table, _) in tables.items() if table.ready and not table.published]:
        text = f"no GPU table ({names.TABLE}) on {some(guessed)}: the GPUs of a node are taken to be equal"
        yield Finding("nodes", NOTE, text, "run our device plugin there if they are not")
    if bare := [name for name, (_, node) in tables.items() if labels_of(node).get(LABEL) != "true"]:
        text = f"{names.MEM} without the label {LABEL}=true on {some(bare)}: no device plugin of ours runs there"
        yield Finding("nodes", NOTE, text, f"kubectl label node NODE {LABEL}=true")


def _heartbeat(name: str, table: Table, node: Json, now_s: float) -> Iterator[Finding]:
    """Nodes with gpushare's own plugin have none."""
    text = str(notes_of(node).get(names.PLUGIN, ""))
    remedy = f"look at the device plugin's pod on {name}; no pod is bound there meanwhile"
    if not text:
        if table.published:
            yield Finding("nodes", BAD, f"{name}: the device plugin left a GPU table and no heartbeat", remedy)
        return
    state, beat = beating(text, now_s), read(text)
    if state.isupper() or state.startswith("SILENT"):
        yield Finding("nodes", BAD, f"{name}: the device plugin's heartbeat is {state}", remedy)
    elif beat is not None and before_boot(beat, node):
        yield Finding("nodes", BAD, f"{name}: the device plugin has not registered since the node was started", remedy)


def units(facts: Facts) -> Iterator[Finding]:
    """GiB or MiB is a convention of the whole cluster; nothing in the names tells."""
    sizes = {name: max((card.units for card in table.cards), default=0) for name, (table, _) in facts.tables().items()}
    big, small = [one for one in sizes if sizes[one] > MIB_FROM], [one for one in sizes if 0 < sizes[one] <= MIB_FROM]
    if big and small:
        text = f"GPUs of {some(big)} look as if counted in MiB, those of {some(small)} in GiB"
        yield Finding("units", BAD, text, "give every device plugin the same --memory-unit, then restart them")
    elif big or small:
        yield Finding("units", OK, f"{names.MEM} counts {'MiB' if big else 'GiB'}, by the size of the GPUs")


def leftovers(facts: Facts) -> Iterator[Finding]:
    """Two that give out the same GPU do not know of each other."""
    tables = facts.tables()
    for name, (table, node) in tables.items():
        for mark, whose in OTHERS.items():
            if amount(node, mark, "allocatable") or mark in notes_of(node):
                yield _shared(name, whose, table.published)
    for pod in facts.pods:
        where = bound_to(pod)
        if any(part in image for image in images(pod) for part in ORIGINALS):
            meta = pod["metadata"]
            text = f"gpushare's own {meta['name']} runs on {where or 'no node yet'}"
            remedy = (
                "fine while you migrate node by node; two of a kind on one node are not (docs/kubernetes-migrate.md)"
            )
            yield Finding("left over", NOTE, text, remedy)


def _shared(node: str, whose: str, published: bool) -> Finding:
    text = f"{whose} offers the same GPUs on {node}"
    if published:
        remedy = "what its pods use is counted as foreign; better keep the two on different nodes"
        return Finding("left over", NOTE, text, remedy)
    remedy = f"take one of the two off {node}: their pods are not counted against each other"
    return Finding("left over", BAD, text, remedy)


def overcommitted(facts: Facts) -> Iterator[Finding]:
    """More given out on a GPU than it has."""
    given = _given(facts)
    tables = facts.tables()
    found = 0
    for (node, gpu), used in sorted(given.items()):
        if node not in tables:
            continue
        size = next((card.units for card in tables[node][0].cards if card.index == gpu), None)
        if size is None or used > size:
            found += 1
            has = "does not exist" if size is None else f"has {size}"
            text = f"GPU {gpu} of {node} {has}, and pods hold {used} units of it"
            yield Finding(
                "over-committed", BAD, text, f"tide kube inspect -d {node} shows them; delete one of the pods"
            )
    if not found:
        yield Finding("over-committed", OK, f"no GPU: {sum(given.values())} units are held on {len(given)} GPUs")


def _given(facts: Facts) -> Mapping[tuple[str, int], int]:
    """Units by node and GPU of bound pods. What cannot be read counts nowhere; inspect says so."""
    given: Counter[tuple[str, int]] = Counter()
    for pod in facts.ours():
        try:
            held = holding_of(pod)
        except UsageError:
            continue
        if held is not None and held.bound:
            given.update({(held.node, gpu): count for gpu, count in held.units.items()})
    return given
