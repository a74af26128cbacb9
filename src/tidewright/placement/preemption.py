"""Which jobs to preempt for a job: the cheapest set of candidates that frees enough devices, and none more.

Built once per plan from the candidates that may go. A matrix holds, per node, the cost of having k devices free there, so
choosing a node is one ``argmin``; the exact set is then found on the board with mark and undo.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..base.units import WHOLE_DEVICE
from ..model.board import ALL_NODES, Board
from ..model.node import Allocation, Part, bits
from ..plan.request import Request
from .facts import facts, flags
from .find import lowest, place, split
from .locality import cheapest_nodes
from .preemption_options import PreemptionOption, cover
from .trial import tried


class PreemptionCandidate(NamedTuple):
    """A running job that may be preempted. ``cost`` is what that loses (any unit, the same for all).

    ``spare`` devices can be taken from it while it runs on (elastic jobs above their floor), for ``squeeze`` cost.
    """

    row: int
    allocation: Allocation
    cost: float
    spare: int = 0
    squeeze: float = 0.0
    suspendable: bool = True


class Preemption(NamedTuple):
    """Where the job goes, the rows to suspend and to shrink (with what they keep). Already made on the board."""

    allocation: Allocation
    suspended: tuple[int, ...]
    shrunk: tuple[tuple[int, Allocation], ...]


class PreemptionIndex:
    """The candidates of one plan, by node. Nodes are priced when a search could use them, and anew once they have changed."""

    def __init__(self, board: Board, candidates: Iterable[PreemptionCandidate]) -> None:
        self.board = board
        self._known = facts(board.layout)
        self._candidates = {candidate.row: candidate for candidate in candidates}
        self._on: dict[int, dict[int, bool]] = {}
        for candidate in self._candidates.values():
            for part in candidate.allocation:
                self._on.setdefault(part.node, {})[candidate.row] = True
        self._options: dict[int, list[PreemptionOption]] = {}
        width = max(board.layout.node_size, default=0) + 1
        self._unpriced: list[dict[int, bool]] = [{} for _ in range(width + 1)]
        """Nodes by how many devices they could have free at most; the last are those for which that is not known."""
        self._cost = np.full((len(board.layout.nodes), width), np.inf)
        self._refresh_all(width)

    def __contains__(self, row: int) -> bool:
        return row in self._candidates

    def remove(self, row: int) -> None:
        """This row may not be preempted any more."""
        candidate = self._candidates.pop(row, None)
        if candidate is not None:
            for part in candidate.allocation:
                del self._on[part.node][row]
                self._changed(part.node)

    def add(self, candidates: Iterable[PreemptionCandidate]) -> None:
        """These may be preempted again. Afterwards the index is as if it had been built with them."""
        for candidate in candidates:
            self._candidates[candidate.row] = candidate
            for part in candidate.allocation:
                rows = self._on.get(part.node, {})
                # In order of their rows, as they are when all are given at once: costs of sharers are summed in this order.
                self._on[part.node] = dict.fromkeys(sorted((*rows, candidate.row)), True)
                self._changed(part.node)

    def touch(self, allocation: Allocation) -> None:
        """These devices were taken or given on the board."""
        for part in allocation:
            self._changed(part.node)

    def find_preemption(self, request: Request) -> Preemption | None:
        """The cheapest room for ``request``, taken on the board; None (board untouched) when no set of candidates would do."""
        for kinds in request.groups:
            mark = self.board.mark()
            gone = self._search(request, kinds)
            room = self._settle(request, *gone) if gone is not None else None
            if room is not None:
                return room
            self.board.undo(mark)
        return None

    # -- prices -----------------------------------------------------------------------------------------------------

    def _refresh_all(self, width: int) -> None:
        board = self.board
        free = np.array([mask.bit_count() for mask in board.free], dtype=np.int64)
        up = np.ones(len(free), bool)
        down = ((1 << len(free)) - 1) & ~board.up
        up[bits(down)] = False
        self._cost[(np.arange(width) <= free[:, None]) & up[:, None]] = 0.0
        self._cost[list(self._on)] = np.inf
        self._unpriced[-1] = dict.fromkeys(self._on, True)

    def _changed(self, node: int) -> None:
        self._cost[node] = np.inf
        self._options.pop(node, None)
        self._unpriced[-1][node] = True

    def _price(self, count: int) -> None:
        """Price the nodes that could have ``count`` devices free."""
        for bucket in self._unpriced[count:]:
            while bucket:
                node, _ = bucket.popitem()
                room = self._free_at_most(node, count)
                if room >= count:
                    self._reprice(node)
                else:
                    self._unpriced[room][node] = True

    def _free_at_most(self, node: int, wanted: int) -> int:
        """Devices that could be free on a node, counted until there are as many as wanted."""
        room = self.board.free[node].bit_count()
        for row in self._on.get(node, ()) if room < wanted else ():
            room += sum(part.mask.bit_count() for part in self._candidates[row].allocation if part.node == node)
        return room

    def _reprice(self, node: int) -> None:
        row = self._cost[node]
        if not self.board.up >> node & 1:
            return
        free = self.board.free[node].bit_count()
        prices = [0.0] * (free + 1)
        total = 0.0
        options = self._options_of(node)
        counted: dict[int, PreemptionOption] = {}
        for option in options:
            before = counted.get(option.rows[0])
            if before is not None and before.gain >= option.gain:
                continue
            counted[option.rows[0]] = option
            total += option.cost - (before.cost if before else 0.0)
            prices.extend([total] * (option.gain - (before.gain if before else 0)))
        top = min(len(prices), self.board.layout.node_size[node] + 1)
        for option in options:
            for count in range(min(free + option.gain, top - 1), free, -1):
                if prices[count] <= option.cost:
                    break
                prices[count] = option.cost
        row[:top] = prices[:top]

    def _options_of(self, node: int) -> list[PreemptionOption]:
        """What can be had on a node, cheapest per device first."""
        found = self._options.get(node)
        if found is None:
            found = self._options[node] = sorted(self._make_options(node))
        return found

    def _make_options(self, node: int) -> Iterable[PreemptionOption]:
        shared: dict[int, list[PreemptionCandidate]] = {}
        for row in self._on.get(node, ()):
            candidate = self._candidates[row]
            part = next(part for part in candidate.allocation if part.node == node)
            if part.milli < WHOLE_DEVICE:
                shared.setdefault(part.mask, []).append(candidate)
                continue
            gain = part.mask.bit_count()
            if candidate.suspendable:
                yield PreemptionOption(candidate.cost / gain, (row,), candidate.cost, gain, False)
            less = min(gain, candidate.spare)
            if less:
                yield PreemptionOption(candidate.squeeze / less, (row,), candidate.squeeze, less, True)
        for device, sharers in shared.items():
            if sum(sharer.allocation[0].milli for sharer in sharers) == self.board.partial.get((node, device), 0):
                cost = sum(sharer.cost for sharer in sharers)
                yield PreemptionOption(cost, tuple(sharer.row for sharer in sharers), cost, 1, False)

    # -- searching --------------------------------------------------------------------------------------------------

    def _search(self, request: Request, kinds: int) -> tuple[dict[int, bool], int] | None:
        if request.resourced or (request.shares and self.board.measured):
            whole = {row: (one.cost, one.allocation) for row, one in self._candidates.items() if one.suspendable}
            on = {node: [row for row in rows if row in whole] for node, rows in self._on.items()}
            gone = tried(self.board, request, kinds, whole, on)
            return (gone, ALL_NODES) if gone is not None else None
        return self._share(request, kinds) if request.shares else self._devices(request, kinds)

    def _devices(self, request: Request, kinds: int) -> tuple[dict[int, bool], int] | None:
        """Rows to preempt (true: shrink only) and the nodes that then have room; their devices are released."""
        width = self._cost.shape[1]
        if request.count < width:
            self._price(request.count)
            node = self._cheapest(request, kinds, request.count)
            if node >= 0:
                return self._clear(node, request.count, {}), 1 << node
        if request.pinned_node >= 0 or request.one_node:
            return None
        mark = self.board.mark()
        for kind in bits(kinds):
            found = self._anywhere(request, kind) if request.placement == "any" else self._nodes(request, kind)
            if found is not None:
                return found
            self.board.undo(mark)
        return None

    def _cheapest(self, request: Request, kinds: int, count: int) -> int:
        """The node of the request's on which ``count`` devices cost least; -1 when none can have so many."""
        column, nodes = self._cost[:, count], request.nodes(self.board.layout)
        if nodes != ALL_NODES:
            column = np.where(flags(nodes, len(column)), column, np.inf)
        if kinds != (1 << len(self.board.layout.kinds)) - 1:
            wanted = [bool(kinds >> kind & 1) for kind in range(len(self.board.layout.kinds))]
            column = np.where(np.array(wanted)[self._known.kind_of], column, np.inf)
        if not len(column):
            return -1
        node = int(cheapest_nodes(column, 1, request.locality)[0] if request.locality else column.argmin())
        return node if np.isfinite(column[node]) else -1

    def _clear(self, node: int, count: int, gone: dict[int, bool]) -> dict[int, bool]:
        """Give back, on the board, what makes ``count`` devices free on a node; adds to ``gone``."""
        need = count - self.board.free[node].bit_count()
        if need > 0:
            options = [option for option in self._options_of(node) if not any(row in gone for row in option.rows)]
            for option in cover(options, need):
                for row in option.rows:
                    self._release(row, node, need, option.shrink)
                    gone[row] = option.shrink
        return gone

    def _release(self, row: int, node: int, need: int, shrink: bool) -> None:
        candidate = self._candidates[row]
        if not shrink:
            self.board.release(candidate.allocation)
            return
        part = next(part for part in candidate.allocation if part.node == node)
        less = min(need, candidate.spare, part.mask.bit_count())
        self.board.release((Part(node, lowest(part.mask, less)),))

    def _nodes(self, request: Request, kind: int) -> tuple[dict[int, bool], int] | None:
        parts = split(request, kind, self.board.layout)
        if parts is None:
            return None
        whole, usable, rest = parts
        self._price(min(usable, rest or usable))
        of_kind = self._known.kind_of == kind
        mine = request.nodes(self.board.layout)
        if mine != ALL_NODES:
            of_kind &= flags(mine, len(of_kind))
        prices = np.where(of_kind, self._cost[:, usable], np.inf)
        order = cheapest_nodes(prices, whole, request.locality)
        if len(order) < whole or not np.isfinite(prices[order]).all():
            return None
        nodes = {int(node): usable for node in order}
        if rest:
            left = np.where(of_kind, self._cost[:, rest], np.inf)
            left[order] = np.inf
            last = int(left.argmin())
            if not np.isfinite(left[last]):
                return None
            nodes[last] = rest
        gone: dict[int, bool] = {}
        for node, count in nodes.items():
            self._clear(node, count, gone)
        return gone, sum(1 << node for node in nodes)

    def _anywhere(self, request: Request, kind: int) -> tuple[dict[int, bool], int] | None:
        """For a job that may be scattered: the cheapest devices of the whole kind."""
        gone: dict[int, bool] = {}
        usable = self.board.up & request.nodes(self.board.layout)
        nodes = [node for node in self._on if self.board.layout.node_kind[node] == kind and usable >> node & 1]
        options = sorted((option, node) for node in nodes for option in self._options_of(node))
        for option, node in options:
            if place(self.board, request) is not None:
                break
            if not any(row in gone for row in option.rows):
                for row in option.rows:
                    self._release(row, node, request.count - self.board.free_in(1 << kind), option.shrink)
                    gone[row] = option.shrink
        return (gone, ALL_NODES) if place(self.board, request) is not None else None

    def _share(self, request: Request, kinds: int) -> tuple[dict[int, bool], int] | None:
        """Room for a share: the cheapest sharers of one device, or a device of its own."""
        self._price(1)
        best: tuple[float, int, tuple[int, ...]] | None = None
        nodes = request.nodes(self.board.layout)
        for node, rows in self._on.items():
            if not nodes >> node & 1 or not kinds >> self.board.layout.node_kind[node] & 1:
                continue
            for cost, chosen in self._sharers(node, rows, request):
                if best is None or (cost, node, chosen) < best:
                    best = (cost, node, chosen)
        node = self._cheapest(request, kinds, 1)
        fits = node >= 0 and request.share_milli(node, self.board.layout) <= WHOLE_DEVICE
        if fits and float(self._cost[node, 1]) < (best[0] if best else np.inf):
            return self._clear(node, 1, {}), 1 << node
        if best is None:
            return None
        for row in best[2]:
            self.board.release(self._candidates[row].allocation)
        return dict.fromkeys(best[2], False), 1 << best[1]

    def _sharers(self, node: int, rows: dict[int, bool], request: Request) -> Iterable[tuple[float, tuple[int, ...]]]:
        share = request.share_milli(node, self.board.layout)
        if share > WHOLE_DEVICE or not self.board.up >> node & 1:
            return
        devices: dict[int, list[PreemptionCandidate]] = {}
        for row in rows:
            part = self._candidates[row].allocation[0]
            if part.milli < WHOLE_DEVICE:
                devices.setdefault(part.mask, []).append(self._candidates[row])
        for device, sharers in devices.items():
            over = self.board.partial.get((node, device), 0) + share - WHOLE_DEVICE
            options = sorted(
                PreemptionOption(
                    one.cost / one.allocation[0].milli, (one.row,), one.cost, one.allocation[0].milli, False
                )
                for one in sharers
            )
            if sum(option.gain for option in options) >= over:
                chosen = cover(options, over)
                yield sum(option.cost for option in chosen), tuple(row for option in chosen for row in option.rows)

    # -- landing ----------------------------------------------------------------------------------------------------

    def _settle(self, request: Request, gone: dict[int, bool], nodes: int) -> Preemption | None:
        board = self.board
        if len(gone) > 1:
            self._spare(request, gone, nodes)
        allocation = place(board, request, nodes)
        if allocation is None:
            return None
        board.acquire(allocation)
        suspended = tuple(row for row, shrink in gone.items() if not shrink)
        kept_by = {row: self._kept(row, allocation) for row, shrink in gone.items() if shrink}
        shrunk = tuple((row, kept) for row, kept in kept_by.items() if kept != self._candidates[row].allocation)
        for row in suspended:
            self._remove_used(row)
        for kept in kept_by.values():
            self._reclaim(kept)
        for row, _ in shrunk:
            self._remove_used(row)
        self.touch(allocation)
        return Preemption(allocation, suspended, shrunk)

    def _spare(self, request: Request, gone: dict[int, bool], nodes: int) -> None:
        """Let those stay that are not needed after all, the dearest first."""
        board = self.board
        for row in sorted(
            (row for row, shrink in gone.items() if not shrink), key=lambda row: (-self._candidates[row].cost, row)
        ):
            mine = self._candidates[row].allocation
            if not board.fits(mine):
                continue
            mark = board.mark()
            board.acquire(mine)
            if place(board, request, nodes) is None:
                board.undo(mark)
            else:
                del gone[row]

    def _kept(self, row: int, allocation: Allocation) -> Allocation:
        """What a shrunk candidate keeps: its devices less those the newcomer took, never less than asked of it."""
        taken: dict[int, int] = {part.node: part.mask for part in allocation}
        mine = self._candidates[row].allocation
        kept = (part._replace(mask=part.mask & ~taken.get(part.node, 0)) for part in mine)
        return tuple(part for part in kept if part.mask)

    def _reclaim(self, kept: Allocation) -> None:
        """Devices offered but not taken go back to their candidate."""
        for part in kept:
            free = self.board.free[part.node] & part.mask
            if free:
                self.board.acquire((Part(part.node, free),))

    def _remove_used(self, row: int) -> None:
        candidate = self._candidates.pop(row)
        for part in candidate.allocation:
            del self._on[part.node][row]
            self._changed(part.node)
