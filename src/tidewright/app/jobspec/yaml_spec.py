"""Job specs from YAML files, with every mistake reported at once and at its line.

The keys are those of docs/jobs.md. Refuses to know whether a job fits the pool: that is the engine's question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...base.errors import UsageError
from ...model.job import JobSpec, Phase, problems
from . import fields, located, members, notify
from .loaded import Loaded, Submitter
from .located import COMMAND_LINE, Mistakes, Scalar, Sequence, Value
from .overrides import Override, laid_over
from .ranks import default_ranks

REMEDY = "every key is described in docs/jobs.md; nothing was submitted"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SHELL = ("/bin/bash", "-e", "-c")
"""What runs the text of ``run``: it stops at the first command that fails."""


def parse(text: str, file: str, submitter: Submitter, overrides: Iterable[Override] = ()) -> Loaded:
    """Specs of a YAML text; ``file`` is its name in messages. ``overrides`` hold for each of its documents."""
    mistakes = Mistakes(file)
    documents = located.parse(text, mistakes)
    if not documents and not mistakes.found:
        mistakes.add(1, "empty; a job needs at least a command")
    loaded = Loaded()
    for document in documents:
        _document(document, submitter, mistakes, loaded, overrides)
    mistakes.check(REMEDY)
    return loaded


def _document(
    document: Value, submitter: Submitter, mistakes: Mistakes, loaded: Loaded, overrides: Iterable[Override]
) -> None:
    if not isinstance(document, located.Mapping):
        mistakes.add(document.line, "a job is written as `key: value` lines, e.g. `command: python train.py`")
        return
    reader = _Document(laid_over(document, tuple(overrides), mistakes), mistakes)
    found = reader.specs(submitter)
    loaded.specs.extend(found)
    loaded.groups.append(len(found))
    loaded.after.append(reader.after)


class _Document:
    """One YAML document on its way to specs."""

    def __init__(self, document: located.Mapping, mistakes: Mistakes) -> None:
        self.document = document
        self.mistakes = mistakes
        self.values: dict[str, Any] = {}
        self.bad: set[str] = set()
        self.after: tuple[str, ...] = ()

    def specs(self, submitter: Submitter) -> list[JobSpec]:
        for key, value in self.document.entries.items():
            if key in KEYS:
                self._read(key, value)
            else:
                self.mistakes.unknown(self.document.key_lines[key], "key", key, KEYS)
        indices, limit = self.values.pop("array", ((), 0))
        axes = self.values.pop("sweep", {})
        self.after = self.values.pop("after", ())
        limit = self.values.pop("at_once", 0) or limit
        self._exclusive("command", "run")
        self._exclusive("array", "sweep")
        if "class" in self.document.entries and not self.document.entries.keys() & _CLASSED:
            self.bad.add("class")
            self.mistakes.add(
                self.document.key_lines["class"],
                "class: of a share of a device, or of a client of a runtime; add share: 0.5 or runtime: NAME",
            )
        if "at_once" in self.document.entries and not (indices or axes) and not self.bad:
            self.mistakes.add(self.document.key_lines["at_once"], "at_once: only an array or a sweep has members")
        spec = self._spec(submitter)
        self._check(spec)
        return [] if self.mistakes.found else self._members(spec, indices, axes, limit)

    def _members(
        self, spec: JobSpec, indices: tuple[int, ...], axes: dict[str, tuple[str, ...]], limit: int
    ) -> list[JobSpec]:
        try:
            if axes:
                return members.sweep(spec, axes, limit)
            return members.array(spec, indices, limit) if indices else [spec]
        except UsageError as error:
            self.mistakes.add(self.document.key_lines["sweep"], f"sweep: {error.message}")
            return []

    def _read(self, key: str, value: Value) -> None:
        name, reader = KEYS[key]
        try:
            self.values[name] = reader(value)
        except _Wrong as wrong:
            self.bad.add(name)
            self.mistakes.add(wrong.line, f"{key}: {wrong}")

    def _exclusive(self, first: str, second: str) -> None:
        lines = self.document.key_lines
        if first in lines and second in lines:
            self.mistakes.add(lines[second], f"{second}: give either {first} or {second}, not both")

    def _spec(self, submitter: Submitter) -> JobSpec:
        values = settled(self.values)
        if "run" in values:
            values["command"] = (*SHELL, values.pop("run"))
        values["env"] = {**submitter.environ, **values.get("env", {})}
        values["notify"] = notify.popped(values, submitter.user)
        values["workdir"] = str(Path(submitter.workdir, Path(values.get("workdir", "")).expanduser()))
        spec = JobSpec(user=submitter.user, **values)
        return spec if "ranks" in values else replace(spec, ranks=default_ranks(spec.command, max(spec.devices, 1)))

    def _check(self, spec: JobSpec) -> None:
        """The model's own rules, at the line of their key; keys already found wrong are not judged twice."""
        lines = self.document.key_lines
        for problem in problems(spec):
            key = problem.partition(":")[0]
            if key in self.bad or (key == "command" and "run" in self.bad):
                continue
            shown = _SHOWN.get(key, key)
            if shown in self.bad:
                continue
            line = lines.get(shown) or lines.get("devices" if shown == "ranks" else "run") or self.document.line
            self.mistakes.add(line, problem)


def settled(given: dict[str, Any]) -> dict[str, Any]:
    """Fields of a JobSpec from values that were read by ``KEYS``, but for those that say what is run and where."""
    values = dict(given)
    if "runtime" in values:
        values.setdefault("devices", ((), 0, 0))
        values |= {"runtime_class": values.pop("share_class")} if "share_class" in values else {}
    elif values.get("share_class") == "be":
        values.setdefault("tier", "basic")
    if "devices" in values:
        kinds, least, most = values.pop("devices")
        values |= {"devices": most, "min_devices": least}
        if kinds:
            values.setdefault("device_types", kinds)
    return values


def read_override(one: Override, mistakes: Mistakes) -> dict[str, Any]:
    """The field and the value of an option that is a key of a spec; empty, and noted, where the value is wrong."""
    name, reader = KEYS[one.key]
    try:
        return {name: reader(one.value)}
    except _Wrong as wrong:
        mistakes.add(COMMAND_LINE, f"{one.written}: {wrong}")
        return {}


_CLASSED = {"runtime", "share", "gpu_memory", "gpu_milli"}
"""Keys that a class is of."""
_SHOWN = {"min_devices": "devices", "device_types, gpu_memory, share": "device_types", "cpus, memory": "runtime"}
"""The key whose line a problem is shown at, where that is another than it is named after."""


class _Wrong(Exception):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


def _scalar(reader: Callable[[str], Any]) -> Callable[[Value], Any]:
    """A reader of a single value that is not a list, a mapping or nothing."""

    def read(value: Value) -> Any:
        if not isinstance(value, Scalar):
            raise _Wrong(value.line, "a single value is wanted here")
        if value.null:
            raise _Wrong(value.line, "no value; leave the key out for the default")
        return _apply(reader, value)

    return read


def _apply(reader: Callable[[str], Any], value: Scalar) -> Any:
    try:
        return reader(value.text)
    except UsageError as error:
        raise _Wrong(value.line, f"{error.message}; {error.remedy}" if error.remedy else error.message) from None


def _items(value: Value, reader: Callable[[str], Any]) -> tuple[Any, ...]:
    """Each item of a list of single values, or a single value as a list of one."""
    if isinstance(value, Sequence):
        return tuple(_scalar(reader)(item) for item in value.items)
    return (_scalar(reader)(value),)


def _command(value: Value) -> tuple[str, ...]:
    if isinstance(value, Sequence):
        return _items(value, fields.plain)
    found: tuple[str, ...] = _scalar(lambda text: fields.words(fields.plain(text)))(value)
    return found


def _types(value: Value) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in _items(value, fields.types) for name in names))


def _env(value: Value) -> dict[str, str]:
    if isinstance(value, Sequence):
        return dict(_items(value, fields.variable))
    if not isinstance(value, located.Mapping):
        raise _Wrong(value.line, "write the variables as `NAME: value` lines")
    found = {}
    for name, item in value.entries.items():
        if not isinstance(item, Scalar):
            raise _Wrong(item.line, f"{name}: a single value is wanted here")
        found[name] = "" if item.null and item.text != "null" else _apply(fields.plain, item)
    return found


def _dependencies(value: Value) -> tuple[str, ...]:
    found = (one for many in _items(value, fields.dependencies) for one in many)
    return tuple(f"{one.kind}:{one.ref}" for one in dict.fromkeys(found))


def _array(value: Value) -> tuple[tuple[int, ...], int]:
    if isinstance(value, Sequence):
        found = _items(value, fields.whole)
        if not found or len(set(found)) != len(found):
            raise _Wrong(value.line, "name every index once")
        return tuple(sorted(found)), 0
    read: tuple[tuple[int, ...], int] = _scalar(fields.indices)(value)
    return read


def _phases(value: Value) -> tuple[Phase, ...]:
    if not isinstance(value, located.Sequence):
        raise _Wrong(value.line, "write it as a list of `workload: NAME` and `work: TIME`")
    found = []
    for item in value.items:
        if not isinstance(item, located.Mapping) or not {"workload"} <= item.entries.keys() <= {"workload", "work"}:
            raise _Wrong(item.line, "a phase has a workload and, unless it is the last, the work done in it (work: 2h)")
        name: str = _scalar(fields.plain)(item.entries["workload"])
        work: int = _scalar(fields.duration)(item.entries["work"]) if "work" in item.entries else 0
        found.append(Phase(name, work))
    return tuple(found)


def _sweep(value: Value) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, located.Mapping) or not value.entries:
        raise _Wrong(value.line, "write it as `name: [value, value]` lines")
    axes = {}
    for name, item in value.entries.items():
        if not _VARIABLE.fullmatch(name):
            raise _Wrong(value.key_lines[name], f"{name!r} cannot name an environment variable")
        axes[name] = _items(item, fields.plain)
        if not axes[name]:
            raise _Wrong(item.line, f"{name}: no values")
    return axes


KEYS: dict[str, tuple[str, Callable[[Value], Any]]] = {
    "name": ("name", _scalar(fields.job_name)),
    "command": ("command", _command),
    "run": ("run", _scalar(fields.plain)),
    "kind": ("kind", _scalar(fields.one_of("training", "service", "task"))),
    "devices": ("devices", _scalar(fields.devices)),
    "device_types": ("device_types", _types),
    "ranks": ("ranks", _scalar(fields.whole)),
    "gpu_memory": ("gpu_memory", _scalar(fields.memory)),
    "gpu_milli": ("gpu_milli", _scalar(fields.gpu_milli)),
    "share": ("gpu_share", _scalar(fields.gpu_share)),
    "cpus": ("cpus_milli", _scalar(fields.cpus)),
    "memory": ("memory", _scalar(fields.host_memory)),
    "tier": ("tier", _scalar(fields.one_of("premium", "standard", "basic"))),
    "team": ("team", _scalar(str)),
    "weight": ("weight", _scalar(fields.weight)),
    "deadline": ("deadline_us", _scalar(fields.deadline)),
    "max_duration": ("max_duration_us", _scalar(fields.duration)),
    "expected": ("expected_us", _scalar(fields.duration)),
    "workload": ("workload", _scalar(fields.plain)),
    "phases": ("phases", _phases),
    "retries": ("retries", _scalar(fields.whole)),
    "retry_exit_codes": ("retry_exit_codes", lambda value: _items(value, fields.exit_code)),
    "preempt": ("preempt", _scalar(fields.one_of("auto", "full", "freeze", "cooperative", "requeue", "none"))),
    "checkpoint_every": ("checkpoint_us", _scalar(fields.every)),
    "grace": ("grace_us", _scalar(fields.duration)),
    "hold": ("hold", _scalar(fields.yes_or_no)),
    "placement": ("placement", _scalar(fields.one_of("consolidate", "one-node", "any"))),
    "env": ("env", _env),
    "workdir": ("workdir", _scalar(fields.plain)),
    "output": ("output", _scalar(fields.plain)),
    "runtime": ("runtime", _scalar(fields.runtime)),
    "class": ("share_class", _scalar(fields.one_of("rt", "be"))),
    "array": ("array", _array),
    "sweep": ("sweep", _sweep),
    "at_once": ("at_once", _scalar(fields.whole)),
    "after": ("after", _dependencies),
    "mail_type": ("mail_type", lambda value: tuple(one for many in _items(value, notify.kinds) for one in many)),
    "mail_user": ("mail_user", lambda value: tuple(one for many in _items(value, notify.addresses) for one in many)),
    "webhook": ("webhook", lambda value: _items(value, fields.plain)),
}
"""Every key of a spec: the JobSpec field it fills, and how its value is read. docs/jobs.md is checked against it."""
