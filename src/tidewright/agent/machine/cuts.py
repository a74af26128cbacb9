"""Quiescing a gang. The agent of its first node leads the cut; the others wait for its decision.

The cut itself is ``checkpoint.cut.barrier``; control pages are read and written by the shell (``checkpointing.gang``).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ...base.errors import WorldError
from ...base.units import SECOND
from ...wire.agent import Peer
from .actions import ActionFailed, CutGang, GrantHold, PackRendezvous, Refuse, ReleaseRanks, SendCutResult
from .attempt import ENDS, AttemptState
from .scripts import Script

CUT_US = 60 * SECOND
"""Longest hold of a gang whose ranks do not all come to a standstill; a step of training takes seconds at most."""
DECISION_S = CUT_US / SECOND + 15
"""How long a node waits for the leader's decision: a cut, and what the leader may have had to finish before."""

ABANDONED = "its ranks were released, or held for another cut, before this node was asked for its part of this one"

Quiesced = tuple[int, str]
"""Microseconds from the request to the standstill, and the keys of the rendezvous."""


def others_of(peers: tuple[Peer, ...], node: str) -> tuple[Peer, ...]:
    """The agents of the gang's other nodes."""
    return tuple(peer for peer in peers if peer.node != node)


def quiesce(
    state: AttemptState, node: str, cut: int, *, hurry: bool = True, pack: bool = False
) -> Generator[Any, Any, Quiesced]:
    """Bring the whole gang to a standstill. The leader packs what its ranks have left before any node may release them.
    Raises ActionFailed, with all ranks running on."""
    peers = state.record.peers
    if state.record.ending == "stop":
        raise ActionFailed(ENDS)
    if len(peers) > 1 and peers[0].node != node:
        return (yield from _follow(state, cut))
    others = others_of(peers, node)
    state.hold_for(cut)
    try:
        hold_us = yield CutGang(others, cut, hurry)
        left = (yield from _pack(state, cut)) if pack else ""
    except ActionFailed as error:
        yield SendCutResult(others, cut, str(error) or "its leader failed")
        raise
    yield SendCutResult(others, cut, "")
    return hold_us, left


def _pack(state: AttemptState, cut: int) -> Generator[Any, Any, str]:
    try:
        left: str = yield PackRendezvous()
        return left
    except ActionFailed as error:
        yield from release(state, cut)
        raise ActionFailed(f"the keys of its rendezvous cannot be packed: {error}") from error


def _follow(state: AttemptState, cut: int) -> Generator[Any, Any, Quiesced]:
    began = state.scripts.now.mono_us
    over = cut in state.ended_cuts or state.held_for_later(cut)
    why = ABANDONED if over else (yield from _decision(state, cut))
    if why:
        state.ended_cuts.append(cut)
        yield from release(state, cut)
        raise ActionFailed(why)
    return state.scripts.now.mono_us - began, ""


def _decision(state: AttemptState, cut: int) -> Generator[Any, Any, str]:
    """Why there is no cut, or empty."""
    gate = state.decision(cut)
    late = "no decision from the node that leads the cut"
    timer = state.scripts.after(DECISION_S, lambda: state.scripts.open(gate, late))
    why: str = yield gate
    state.scripts.cancel(timer)
    state.decided.pop(cut, None)
    return why


def release(state: AttemptState, cut: int | None = None) -> Generator[Any, Any, None]:
    """Let the ranks of the gang on this node build their connections anew and run on; not from another cut than ``cut``, unless
    nothing will come of that one."""
    if cut is not None and state.held_for is not None and not state.held_by(cut) and not state.held_in_vain:
        return
    state.note_release()
    try:
        yield ReleaseRanks()
    except ActionFailed as error:
        state.log("error", f"its ranks could not be released: {error}")


def refuse(state: AttemptState, node: str, cut: int, peers: tuple[Peer, ...], why: str) -> Generator[Any, Any, None]:
    """There will be no such cut: other nodes, if this one would lead it, need not wait for a decision. Ranks here that were held
    for it already run on."""
    others = others_of(peers, node)
    state.ended_cuts.append(cut)
    if state.held_by(cut) or state.held_in_vain:
        yield from release(state, cut)
    if others and peers[0].node == node:
        yield SendCutResult(others, cut, why)


def grant_hold(state: AttemptState, ask: int, cut: int | None) -> Script:
    """Another node wants the ranks here held for its cut. Not before what was asked for here needs no other cut: its image would
    be taken of the later one, or its end would release the ranks from it. And not for one that is over: no node would release
    them. The node that leads it leads no earlier one any more, and none is waited for. A cut after which another one was asked
    for here already is refused at once: the node that leads both would wait for this one, and this one for the other."""
    if cut is not None:
        state.give_up_overtaken(cut, ABANDONED)
    while cut is not None and not state.has_moved_on(cut) and (gate := state.before_cut(cut)) is not None:
        yield gate
    if cut is not None and state.has_moved_on(cut):
        state.emit(Refuse(ask, WorldError(f"cut {cut} is over: a later one was asked for before it")))
    elif cut in state.ended_cuts or (cut is not None and state.has_made(cut)):
        state.emit(Refuse(ask, WorldError(f"cut {cut} is over")))
    else:
        state.hold_for(cut)
        state.emit(GrantHold(ask))
