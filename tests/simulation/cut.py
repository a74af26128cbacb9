"""A cut over several simulated nodes, led by one of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidewright.agent.machine import actions as do

if TYPE_CHECKING:
    from .node import Node
    from .training import Key

HOLD_S = 20.0
"""How long the leader waits for a node before the cut fails; 60 s and more in the product."""


class SimulatedCut:
    """Hold the ranks on every node, then all stand still; or all run on."""

    def __init__(self, leader: Node, what: do.Do, key: Key, step: do.CutGang) -> None:
        self.leader, self.what, self.key, self.step = leader, what, key, step
        self.began = asyncio.get_running_loop().time()
        self.waiting = {peer.node for peer in step.others}
        self.over = False
        self.life = leader.life

    @property
    def orphaned(self) -> bool:
        """The agent that led it is dead."""
        return self.life != self.leader.life

    def begin(self) -> None:
        self._hold(self.leader)
        for peer in self.step.others:
            self._ask(peer.node)
        self.leader.later(HOLD_S, lambda: self._fail("a node does not answer"))
        self._look()

    def _ask(self, name: str) -> None:
        """Asked until it answers, as messages get lost."""
        if self.over or name not in self.waiting:
            return
        self.leader.network.peer(self.leader, name, self._asked)
        self.leader.later(2.0, lambda: self._ask(name))

    def _asked(self, other: Node) -> None:
        def answer(why: str) -> None:
            if not why:
                self._hold(other)
            other.network.peer(other, self.leader.name, lambda _: self._answered(other.name, why))

        other.may_hold(self.key, self.step.cut, answer)

    def _answered(self, name: str, why: str) -> None:
        if self.orphaned:
            return
        if why:
            self._fail(why)
        self.waiting.discard(name)
        self._look()

    def _hold(self, node: Node) -> None:
        node.held_for[self.key] = self.step.cut
        for process in node.ranks(self.key):
            process.held = process.held or process.alive

    def _look(self) -> None:
        if not self.over and not self.waiting:
            self.leader.later(self.leader.dice.uniform(0.001, 0.3), self._stand_still)

    def _nodes(self) -> list[Node]:
        return [self.leader, *(self.leader.network.nodes_by_name[peer.node] for peer in self.step.others)]

    def _stand_still(self) -> None:
        """Connections run from rank to rank: all nodes must be up, and all ranks held still be there."""
        if self.over:
            return
        ranks = [each for node in self._nodes() for each in node.ranks(self.key) if each.alive]
        whole = ranks and {each.rank for each in ranks} == set(range(ranks[0].world))
        if whole and self.leader.network.steady and not all(each.held for each in ranks):
            self.leader.ledger.wrong.append(
                f"{self.key}: ranks were released while they were held for cut {self.step.cut}"
            )
        if not whole or not all(each.held for each in ranks) or any(each.frozen or each.dumped for each in ranks):
            self._fail("a rank does not come to a standstill")
            return
        self.over = True
        for process in ranks:
            process.quiesced, process.cut = True, self.step.cut
        took = asyncio.get_running_loop().time() - self.began
        self.leader.done_step(self.what, max(1, int(took * 1e6)))

    def _fail(self, why: str) -> None:
        if not self.over:
            self.over = True
            for node in self._nodes():
                self.leader.network.peer(self.leader, node.name, self._release)
            self.leader.failed_step(self.what, do.ActionFailed(why))

    def _release(self, node: Node) -> None:
        if node.held_for.get(self.key, self.step.cut) != self.step.cut:
            return  # it comes late: the ranks there are held for another cut
        for process in node.ranks(self.key):
            process.held = process.quiesced = False
