"""Options of earlier starts that do not work any more: they would stop the next ``tide up``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ...base.errors import TideError, UsageError
from ...base.units import parse_bytes, parse_duration
from ...checkpoint.store.remote import FsspecRemote
from ...devices.registry import backends
from ...live.controller.lock import write_whole
from ...policy.registry import make
from .. import hosts, remembered
from ..access import check_options
from ..jobspec import fields
from ..settings import NAME, Settings, load_settings
from .finding import BAD, NOTE, OK, Finding

KEPT = "up.json.old"
"""Where a repair keeps the file as it was."""
MOST_SLOTS = 64
_GUARDS = frozenset({"listen", "tls_cert", "tls_key", "jobs_as", "images"})
"""Not dropped by a repair: without them jobs would run as another account, or be reached or copied otherwise."""


def check_settings(state: Path, running: bool) -> list[Finding]:
    """config.yaml, up.json and agents.json. ``running``: a controller uses them, and nothing is repaired."""
    try:
        settings = load_settings(state)
    except UsageError as error:
        return [Finding("settings", BAD, error.message, error.remedy)]
    try:
        kept = remembered.recall(state)
    except UsageError as error:
        mend = None if running else partial(_set_aside, state / remembered.FILE)
        return [Finding("options", BAD, error.message, error.remedy, mend), *_agents(state)]
    source = NAME if (state / NAME).exists() else "defaults"
    earlier = ", ".join(remembered.inherited(kept, {}))
    text = f"{source} (policy {kept.get('policy') or settings.policy})"
    found = [Finding("settings", OK, text + f"; from earlier starts {earlier}" * bool(earlier))]
    return [*found, *_options(state, settings, kept, running), *_agents(state)]


def _options(state: Path, settings: Settings, kept: dict[str, str], running: bool) -> list[Finding]:
    useless = {name: why for name, value in kept.items() if (why := _refused(name, value))}
    found = []
    for name, why in useless.items():
        mend = None if running or name in _GUARDS else partial(_forget, state, name)
        level = BAD if name in remembered.NAMES else NOTE  # a start passes over options that it does not know
        text = f"remembered {name} {kept[name]!r} does not work: {why}"
        found.append(Finding("options", level, text, _advice(name), mend))
    if not useless.keys() & _GUARDS:
        try:
            check_options(settings, kept)
        except UsageError as error:
            advice = f"{error.remedy}; or end what is remembered with --listen none, --tls-cert none, --jobs-as none"
            found.append(Finding("options", BAD, f"remembered options do not work: {error.message}", advice))
    return found


def _advice(name: str) -> str:
    option = "--" + name.replace("_", "-")
    if name not in remembered.NAMES:
        return "another version wrote it; tide doctor --repair drops it"
    if name in _GUARDS:
        return f"give tide up another {option}, or {option} none"
    return f"give tide up another {option}; tide doctor --repair drops it, config.yaml and the defaults count then"


def _refused(name: str, value: str) -> str:
    """Why an option does not work; empty when it does."""
    if name not in remembered.NAMES:
        return "there is no such option"
    if name in remembered.ENDED_BY_NONE and value == remembered.NONE:
        return ""
    try:
        _READERS.get(name, str)(value)
    except TideError as error:
        return str(error.args[0])
    except ValueError:
        return "not a number"
    return ""


def _slots(text: str) -> int:
    if not 0 <= int(text) <= MOST_SLOTS:
        raise ValueError
    return int(text)


def _file(text: str) -> None:
    """Raises TideError."""
    if not os.access(text, os.R_OK):
        raise TideError(f"{text} cannot be read")


def _backend(text: str) -> None:
    if text != "auto":
        backends.get(text)


_READERS: dict[str, Callable[[str], object]] = {
    "policy": make, "slots": _slots, "backend": _backend, "image_quota": parse_bytes, "log_limit": fields.log_limit,
    "node_timeout": parse_duration, "tls_cert": _file, "tls_key": _file, "images": FsspecRemote,
}  # fmt: skip


def _forget(state: Path, name: str) -> str:
    options = remembered.recall(state)
    if not (state / KEPT).exists():
        write_whole(state / KEPT, (state / remembered.FILE).read_text())
    value = options.pop(name)
    remembered.remember(state, options)
    return f"dropped {name} {value!r} from {remembered.FILE}; the file as it was is {state / KEPT}"


def _set_aside(path: Path) -> str:
    number = 1
    while (aside := path.with_name(f"{path.name}.unreadable-{number}")).exists():
        number += 1
    path.rename(aside)
    return f"moved {path} to {aside.name}; give tide up its options again"


def _agents(state: Path) -> list[Finding]:
    try:
        agents = hosts.recall(state)
    except UsageError as error:
        return [Finding("options", BAD, error.message, error.remedy)]
    here = os.sched_getaffinity(0)
    found = [
        Finding("options", BAD, f"host {host.name} is to have cores that are not here: {sorted(set(host.cores) - here)}",
                "give tide up its hosts again: --host or --hosts")
        for host in agents.hosts if not set(host.cores) <= here
    ]  # fmt: skip
    found += [
        Finding("options", NOTE, f"no agent answers at {path}", "start that agent, or name others with --agent-socket")
        for path in agents.sockets if not Path(path).exists()
    ]  # fmt: skip
    return found
