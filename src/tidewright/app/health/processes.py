"""The controller, its agents, and the files of the sockets at which they answer."""

from __future__ import annotations

import stat
import time
from functools import partial
from pathlib import Path

from ...base.errors import TideError
from ...base.units import agreeing
from ...wire.api import SOCKET_NAME, Info
from ...wire.client import Client
from ...wire.holder import AGENT_LOCK, CONTROLLER_LOCK, held
from ...wire.nodes import NodeView
from ...wire.socket_file import LOOK_EVERY_S
from .finding import BAD, NOTE, OK, Finding
from .leftovers import named, on_this_machine
from .modes import roots

PATIENCE_S = 3 * LOOK_EVERY_S
"""In that time a daemon has seen that its socket's file is gone, and made it again."""
_LOOK_S = 0.05


def check_sockets(state: Path, patience_s: float = PATIENCE_S) -> list[Finding]:
    """The sockets of daemons that run: each makes a lost file again, unless something lies in its place."""
    daemons = [("controller", state / CONTROLLER_LOCK, state / SOCKET_NAME)]
    daemons += [("agent", root / AGENT_LOCK, root / "agent.sock") for root in roots(state)]
    found = [_socket(what, path, patience_s) for what, lock, path in daemons if held(lock)]
    return [one for one in found if one is not None]


def _socket(what: str, path: Path, patience_s: float) -> Finding | None:
    """None when it is there."""
    if path.is_socket():
        return None
    in_the_way = _is_there(path)
    if not in_the_way and _made_again(path, patience_s):
        return Finding("socket", NOTE, f"{path} was gone; the {what} has made it again", "see what deletes files there")
    if _is_there(path) and not path.is_socket():
        kind = "a directory" if path.is_dir() else "a link" if path.is_symlink() else "a file"
        text = f"{kind} lies at {path}, where the {what} makes its socket"
        return Finding(
            "socket", BAD, text, "move it away, or tide doctor --repair", partial(_clear, what, path, patience_s)
        )
    text = f"{path} is gone, and the {what} does not make it again"
    return Finding("socket", BAD, text, f"see {path.parent / f'{what}.log'}; tide down, then tide up: jobs run on")


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _made_again(path: Path, patience_s: float) -> bool:
    until = time.monotonic() + patience_s
    while not path.is_socket():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True


def _clear(what: str, path: Path, patience_s: float) -> str:
    number = 1
    while _is_there(aside := path.with_name(f"{path.name}.in-the-way-{number}")):
        number += 1
    if not stat.S_ISSOCK(path.lstat().st_mode):
        path.rename(aside)
    if not _made_again(path, patience_s):
        raise TideError(f"moved what lay at {path} to {aside.name}, but the {what} does not make its socket again")
    return f"moved what lay at {path} to {aside.name}; the {what} has made its socket again"


def check_controller(state: Path, pid: int | None) -> tuple[list[Finding], tuple[NodeView, ...]]:
    """Whether it answers and has its agents; the nodes that it knows."""
    if pid is None:
        return [Finding("controller", NOTE, f"not running; {_going_on(state)}", "tide up starts it")], ()
    try:
        client = Client(state, timeout=5.0)
        info, nodes = client.info(), client.nodes().nodes
    except TideError as error:
        text = f"pid {pid} holds the directory but does not answer: {error.args[0]}"
        return [Finding("controller", BAD, text, f"see {state / 'controller.log'}; tide down, then tide up")], ()
    return [*_about(info, pid), *_limits(nodes)], nodes


def _going_on(state: Path) -> str:
    jobs = on_this_machine(state)
    if jobs is None:
        return "jobs that run here go on without it"
    if not jobs:
        return "no job has been left here"
    return f"{named(jobs)} {agreeing(len(jobs), 'goes on without it, or waits', 'go on without it, or wait')} for it"


def _about(info: Info, pid: int) -> list[Finding]:
    agent = OK if info.agent == "connected" else BAD
    return [
        Finding("controller", OK, f"pid {pid}, version {info.version}, turn {info.turn}"),
        Finding("agent", agent, info.agent or "unknown", "" if agent == OK else "see agent.log in the state directory"),
        *(Finding("notice", NOTE, notice) for notice in info.notices),
    ]


def _limits(nodes: tuple[NodeView, ...]) -> list[Finding]:
    lacking = dict.fromkeys(node.unlimited for node in nodes if node.unlimited)
    return [Finding("limits", NOTE, f"what ranks ask for of their hosts: {text}") for text in lacking]
