"""Whom to send away for a job: the cheapest set of holders that makes room, and none more.

Built once per plan from the holders that may go. A matrix holds, per node, the cost of having k devices free there, so
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
from .near import cheapest
from .offers import Offer, cover


class Holder(NamedTuple):
    """A running job that may be sent away. ``cost`` is what that loses (any unit, the same for all).

    ``spare`` devices can be taken from it while it runs on (elastic jobs above their floor), for ``squeeze`` cost.
    """

    row: int
    allocation: Allocation
    cost: float
    spare: int = 0
    squeeze: float = 0.0
    suspendable: bool = True


class Room(NamedTuple):
    """Where the job goes, the rows to suspend and to shrink (with what they keep). Already made on the board."""

    allocation: Allocation
    suspended: tuple[int, ...]
    shrunk: tuple[tuple[int, Allocation], ...]


class Victims:
    """The holders of one plan, by node. Nodes are priced when a search could use them, and anew once they have changed."""

    def __init__(self, board: Board, holders: Iterable[Holder]) -> None:
        self.board = board
        self._known = facts(board.layout)
        self._holders = {holder.row: holder for holder in holders}
        self._on: dict[int, dict[int, bool]] = {}
        for holder in self._holders.values():
            for part in holder.allocation:
                self._on.setdefault(part.node, {})[holder.row] = True
        self._offers: dict[int, list[Offer]] = {}
        width = max(board.layout.node_size, default=0) + 1
        self._unpriced: list[dict[int, bool]] = [{} for _ in range(width + 1)]
        """Nodes by how many devices they could have free at most; the last are those for which that is not known."""
        self._cost = np.full((len(board.layout.nodes), width), np.inf)
        self._refresh_all(width)

    def __contains__(self, row: int) -> bool:
        return row in self._holders

    def retire(self, row: int) -> None:
        """This row may not be sent away any more."""
        holder = self._holders.pop(row, None)
        if holder is not None:
            for part in holder.allocation:
                del self._on[part.node][row]
                self._changed(part.node)

    def touch(self, allocation: Allocation) -> None:
        """These devices were taken or given on the board."""
        for part in allocation:
            self._changed(part.node)

    def make_room(self, request: Request) -> Room | None:
        """The cheapest room for ``request``, taken on the board; None (board untouched) when no set of holders would do."""
        for kinds in request.groups:
            mark = self.board.mark()
            gone = self._share(request, kinds) if request.memory else self._devices(request, kinds)
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
        for node in self._on:
            self._changed(node)

    def _changed(self, node: int) -> None:
        self._cost[node] = np.inf
        self._offers.pop(node, None)
        self._unpriced[-1][node] = True

    def _price(self, count: int) -> None:
        """Price the nodes that could have ``count`` devices free."""
        for bucket in self._unpriced[count:]:
            while bucket:
                node, _ = bucket.popitem()
                room = self._room_on(node, count)
                if room >= count:
                    self._reprice(node)
                else:
                    self._unpriced[room][node] = True

    def _room_on(self, node: int, wanted: int) -> int:
        """Devices that could be free on a node, counted until there are as many as wanted."""
        room = self.board.free[node].bit_count()
        for row in self._on.get(node, ()) if room < wanted else ():
            room += sum(part.mask.bit_count() for part in self._holders[row].allocation if part.node == node)
        return room

    def _reprice(self, node: int) -> None:
        row = self._cost[node]
        if not self.board.up >> node & 1:
            return
        free = self.board.free[node].bit_count()
        prices = [0.0] * (free + 1)
        total = 0.0
        offers = self._offers_of(node)
        counted: dict[int, Offer] = {}
        for offer in offers:
            before = counted.get(offer.rows[0])
            if before is not None and before.gain >= offer.gain:
                continue
            counted[offer.rows[0]] = offer
            total += offer.cost - (before.cost if before else 0.0)
            prices.extend([total] * (offer.gain - (before.gain if before else 0)))
        top = min(len(prices), self.board.layout.node_size[node] + 1)
        for offer in offers:
            for count in range(min(free + offer.gain, top - 1), free, -1):
                if prices[count] <= offer.cost:
                    break
                prices[count] = offer.cost
        row[:top] = prices[:top]

    def _offers_of(self, node: int) -> list[Offer]:
        """What can be had on a node, cheapest per device first."""
        found = self._offers.get(node)
        if found is None:
            found = self._offers[node] = sorted(self._make_offers(node))
        return found

    def _make_offers(self, node: int) -> Iterable[Offer]:
        shared: dict[int, list[Holder]] = {}
        for row in self._on.get(node, ()):
            holder = self._holders[row]
            part = next(part for part in holder.allocation if part.node == node)
            if part.milli < WHOLE_DEVICE:
                shared.setdefault(part.mask, []).append(holder)
                continue
            gain = part.mask.bit_count()
            if holder.suspendable:
                yield Offer(holder.cost / gain, (row,), holder.cost, gain, False)
            less = min(gain, holder.spare)
            if less:
                yield Offer(holder.squeeze / less, (row,), holder.squeeze, less, True)
        for device, sharers in shared.items():
            if sum(sharer.allocation[0].milli for sharer in sharers) == self.board.partial.get((node, device), 0):
                cost = sum(sharer.cost for sharer in sharers)
                yield Offer(cost, tuple(sharer.row for sharer in sharers), cost, 1, False)

    # -- searching --------------------------------------------------------------------------------------------------

    def _devices(self, request: Request, kinds: int) -> tuple[dict[int, bool], int] | None:
        """Rows to send away (true: shrink only) and the nodes that then have room; their devices are given back."""
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
        node = int(cheapest(column, 1, request.locality)[0] if request.locality else column.argmin())
        return node if np.isfinite(column[node]) else -1

    def _clear(self, node: int, count: int, gone: dict[int, bool]) -> dict[int, bool]:
        """Give back, on the board, what makes ``count`` devices free on a node; adds to ``gone``."""
        need = count - self.board.free[node].bit_count()
        if need > 0:
            offers = [offer for offer in self._offers_of(node) if not any(row in gone for row in offer.rows)]
            for offer in cover(offers, need):
                for row in offer.rows:
                    self._release(row, node, need, offer.shrink)
                    gone[row] = offer.shrink
        return gone

    def _release(self, row: int, node: int, need: int, shrink: bool) -> None:
        holder = self._holders[row]
        if not shrink:
            self.board.give(holder.allocation)
            return
        part = next(part for part in holder.allocation if part.node == node)
        less = min(need, holder.spare, part.mask.bit_count())
        self.board.give((Part(node, lowest(part.mask, less)),))

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
        order = cheapest(prices, whole, request.locality)
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
        offers = sorted((offer, node) for node in nodes for offer in self._offers_of(node))
        for offer, node in offers:
            if place(self.board, request) is not None:
                break
            if not any(row in gone for row in offer.rows):
                for row in offer.rows:
                    self._release(row, node, request.count - self.board.free_in(1 << kind), offer.shrink)
                    gone[row] = offer.shrink
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
        fits = node >= 0 and self.board.layout.share_milli(node, request.memory) <= WHOLE_DEVICE
        if fits and float(self._cost[node, 1]) < (best[0] if best else np.inf):
            return self._clear(node, 1, {}), 1 << node
        if best is None:
            return None
        for row in best[2]:
            self.board.give(self._holders[row].allocation)
        return dict.fromkeys(best[2], False), 1 << best[1]

    def _sharers(self, node: int, rows: dict[int, bool], request: Request) -> Iterable[tuple[float, tuple[int, ...]]]:
        share = self.board.layout.share_milli(node, request.memory)
        if share > WHOLE_DEVICE or not self.board.up >> node & 1:
            return
        devices: dict[int, list[Holder]] = {}
        for row in rows:
            part = self._holders[row].allocation[0]
            if part.milli < WHOLE_DEVICE:
                devices.setdefault(part.mask, []).append(self._holders[row])
        for device, sharers in devices.items():
            over = self.board.partial.get((node, device), 0) + share - WHOLE_DEVICE
            offers = sorted(
                Offer(one.cost / one.allocation[0].milli, (one.row,), one.cost, one.allocation[0].milli, False)
                for one in sharers
            )
            if sum(offer.gain for offer in offers) >= over:
                chosen = cover(offers, over)
                yield sum(offer.cost for offer in chosen), tuple(row for offer in chosen for row in offer.rows)

    # -- landing ----------------------------------------------------------------------------------------------------

    def _settle(self, request: Request, gone: dict[int, bool], nodes: int) -> Room | None:
        board = self.board
        if len(gone) > 1:
            self._spare(request, gone, nodes)
        allocation = place(board, request, nodes)
        if allocation is None:
            return None
        board.take(allocation)
        suspended = tuple(row for row, shrink in gone.items() if not shrink)
        kept_by = {row: self._kept(row, allocation) for row, shrink in gone.items() if shrink}
        shrunk = tuple((row, kept) for row, kept in kept_by.items() if kept != self._holders[row].allocation)
        for row in suspended:
            self._forget(row)
        for kept in kept_by.values():
            self._reclaim(kept)
        for row, _ in shrunk:
            self._forget(row)
        self.touch(allocation)
        return Room(allocation, suspended, shrunk)

    def _spare(self, request: Request, gone: dict[int, bool], nodes: int) -> None:
        """Let those stay that are not needed after all, the dearest first."""
        board = self.board
        for row in sorted(
            (row for row, shrink in gone.items() if not shrink), key=lambda row: (-self._holders[row].cost, row)
        ):
            mine = self._holders[row].allocation
            if not board.fits(mine):
                continue
            mark = board.mark()
            board.take(mine)
            if place(board, request, nodes) is None:
                board.undo(mark)
            else:
                del gone[row]

    def _kept(self, row: int, allocation: Allocation) -> Allocation:
        """What a shrunk holder keeps: its devices less those the newcomer took, never less than asked of it."""
        taken: dict[int, int] = {part.node: part.mask for part in allocation}
        kept = (Part(p.node, p.mask & ~taken.get(p.node, 0), p.milli) for p in self._holders[row].allocation)
        return tuple(part for part in kept if part.mask)

    def _reclaim(self, kept: Allocation) -> None:
        """Devices offered but not taken go back to their holder."""
        for part in kept:
            free = self.board.free[part.node] & part.mask
            if free:
                self.board.take((Part(part.node, free),))

    def _forget(self, row: int) -> None:
        holder = self._holders.pop(row)
        for part in holder.allocation:
            del self._on[part.node][row]
            self._changed(part.node)


def enough(board: Board, request: Request, allocations: Iterable[Allocation]) -> bool:
    """Whether sending all these away could make room: a necessary condition, far cheaper than looking for victims."""
    if request.memory or request.placement == "any":
        return True
    gain = [0] * len(board.free)
    nodes = request.nodes(board.layout)
    plain = nodes == ALL_NODES and len(board.layout.kinds) == 1
    for allocation in allocations:
        for node, mask, _ in allocation:
            gain[node] += mask.bit_count()
            # One node that could hold it all settles the question, usually after a few holders.
            if plain and gain[node] >= request.count - board.free[node].bit_count() and board.up >> node & 1:
                return True
    return any(_enough(board, request, nodes, kind, gain) for kinds in request.groups for kind in bits(kinds))


def _enough(board: Board, request: Request, nodes: int, kind: int, gain: list[int]) -> bool:
    """Whether those of ``nodes`` that are of this kind could have the devices, if each had its ``gain`` more."""
    rooms = [free.bit_count() + more for free, more in zip(board.free, gain, strict=True)]
    if len(board.layout.kinds) > 1 or board.up.bit_count() < len(rooms) or nodes != ALL_NODES:
        kinds, up = board.layout.node_kind, board.up & nodes
        rooms = [room if kinds[node] == kind and up >> node & 1 else 0 for node, room in enumerate(rooms)]
    if max(rooms) >= request.count:
        return True
    parts = None if request.one_node or request.pinned_node >= 0 else split(request, kind, board.layout)
    if parts is None:
        return False
    whole, usable, rest = parts
    full = sum(room >= usable for room in rooms)
    return full >= whole and (not rest or sum(room >= rest for room in rooms) > whole)
