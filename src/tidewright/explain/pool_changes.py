"""Changes of the pool that would start a waiting job: nodes that take work again, and more nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ..engine import events as ev
from ..engine.engine import Engine
from ..model.cause import Code, reported
from ..model.node import NodeSpec, bits
from ..plan.explain import Change
from .search import ChangeSearch
from .trial import settle

_MOST_NODES = 256


def undrained(search: ChangeSearch) -> Iterator[Change]:
    """Drained and cordoned nodes that could hold ranks of it, the largest first."""
    book, layout = search.book, search.book.board.layout
    request = book.request(search.job)
    whys = {index: reported(why) for index, why in book.drained.items()}
    whys |= {index: cordon.why for index, cordon in book.outages.cordoned.items() if index not in whys}
    able = [index for index in whys if index not in book.node_down and request.reject_node(index, layout) is None]
    order = sorted(able, key=lambda index: (-layout.node_size[index], index))

    def starts(some: Sequence[int]) -> bool:
        names = [layout.nodes[index].name for index in some]
        return search.starts_after(*(ev.NodeDrain(name, False, op_id=f"explain.{name}") for name in names))

    if order:
        search.look("undrain")
    found = search.fewest(order, starts)
    if found:
        names = tuple(layout.nodes[index].name for index in found)
        what = Code.UNDRAIN(tuple(Code.NODE_BECAUSE(layout.nodes[index].name, whys[index]) for index in found))
        yield Change("undrain", what, "", nodes=names)


def more_nodes(search: ChangeSearch) -> Iterator[Change]:
    """The fewest more nodes, of the most common sort of each kind that the job accepts."""
    book, layout = search.book, search.book.board.layout
    kinds = int(book.table.kinds[book.table.row[search.job]])
    for kind in bits(kinds):
        like = _typical([node for node, of in zip(layout.nodes, layout.node_kind, strict=True) if of == kind])
        count = _fewest(search, like) if like is not None and not search.enough() else 0
        if like is not None and count:
            yield Change("nodes", Code.MORE_NODES(count, like.devices, like.kind), "", count=count, nodes=(like.kind,))


def _fewest(search: ChangeSearch, like: NodeSpec) -> int:
    """So many nodes like this one have to be added; 0: more than are tried."""

    def starts(count: int) -> bool:
        return search.starts_after(*(_added(like, number) for number in range(count)))

    high = _doubled(search, like)
    if not high or (high > 1 and not starts(high)):
        return 0
    low = 0
    while high - low > 1 and not search.enough():
        middle = (low + high) // 2
        low, high = (low, middle) if starts(middle) else (middle, high)
    return high


def _doubled(search: ChangeSearch, like: NodeSpec) -> int:
    """1, 2, 4, … nodes added to one fork until the job starts; 0: it does not with as many as are tried."""
    search.look("nodes")
    fork, there, count = Engine.restore(search.image), 0, 1
    while count <= _MOST_NODES and not search.enough():
        fork.replan()
        if settle(fork, search.planner, [_added(like, number) for number in range(there, count)], search.job):
            return count
        there, count = count, 2 * count
    return 0


def _added(like: NodeSpec, number: int) -> ev.Event:
    name = f"+{number}"
    return ev.NodeUp(msgspec.structs.replace(like, name=name), name)


def _typical(nodes: list[NodeSpec]) -> NodeSpec | None:
    """The most common sort of these nodes."""
    sorts: dict[tuple[int, int, int, int], list[NodeSpec]] = {}
    for node in nodes:
        sorts.setdefault((node.devices, node.device_memory, node.cpus, node.memory), []).append(node)
    return max(sorts.values(), key=len)[0] if sorts else None
