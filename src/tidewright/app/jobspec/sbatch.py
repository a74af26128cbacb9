"""Slurm batch scripts: ``#SBATCH`` lines as a JobSpec. What is not honoured is named in a warning, never dropped.

devices = nodes × gres, ranks = nodes × tasks per node, as sbatch(1) counts; each rank runs the script itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ...base.errors import UsageError
from ...base.ids import valid_name
from ...base.units import MINUTE, parse_duration
from ...model.job import JobSpec, problems
from . import fields, members, notify
from .batch_job import Batch, of_array, prelude
from .loaded import Loaded, Submitter
from .located import COMMAND_LINE, Mistakes, located_text
from .overrides import Override
from .sbatch_memory import host_of_rank, slurm_memory
from .sbatch_options import Option, options
from .slurm_calls import uses_srun
from .yaml_spec import read_override, settled

REMEDY = "how each option is understood is in docs/slurm.md; nothing was submitted"
MAX_ARGUMENT = 128 * 1024 - 4096
"""Longest script handed to its shell as an argument; Linux allows 128 KiB (execve(2), MAX_ARG_STRLEN)."""
_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "zsh"})
_GRES = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?:[:=](?P<count>\d+))?")
_GPUS = re.compile(r"(?:(?P<type>[A-Za-z][\w.-]*):)?(?P<count>\d+)")
_PATTERN = re.compile(r"%\d*([a-zA-Z])")


def load(
    path: Path | None, text: str, submitter: Submitter, arguments: tuple[str, ...] = (), overrides: Iterable[Override] = (),
    name: str = "stdin",
) -> Loaded:  # fmt: skip
    """The specs of a script; without a ``path`` it is known by ``name`` and has no file. ``overrides`` win over its lines. Raises
    UsageError listing every mistake as ``file:line: what``."""
    file = str(path) if path is not None else name
    mistakes = Mistakes(file)
    found, late = options(text, mistakes)
    script = _Script(file, submitter, mistakes)
    for line in late:
        script.warn(line, "#SBATCH after the first command is not read, as in sbatch")
    for option in found:
        script.take(option)
    script.override(list(overrides))
    specs = script.specs(_command(path, text, arguments, script))
    mistakes.check(REMEDY)
    return Loaded(specs, script.warnings, [len(specs)], [script.after])


def _command(path: Path | None, text: str, arguments: tuple[str, ...], script: _Script) -> tuple[str, ...]:
    """A shell script travels in the command, so later edits of its file change nothing; others run where they are."""
    first, _, _ = text.partition("\n")
    interpreter = tuple(first[2:].split()) if first.startswith("#!") else ()
    if not interpreter:
        script.mistakes.add(1, "the first line must name the interpreter, e.g. #!/bin/bash")
        return ()
    where = str(path.resolve()) if path is not None else script.file
    program = Path(interpreter[-1] if Path(interpreter[0]).name == "env" else interpreter[0]).name
    if program not in _SHELLS and path is None:
        if not re.fullmatch(r"python[0-9.]*", program):
            script.mistakes.add(
                1, f"a script of {program} cannot be read from stdin; save it in a file and submit that"
            )
        return (*interpreter, "-c", text, *arguments)
    if program not in _SHELLS:
        return (*interpreter, where, *arguments)
    script.text = text
    first_words = prelude(program, steps=uses_srun(text))
    if len(text.encode()) + len(first_words) > MAX_ARGUMENT:
        if path is None:
            script.mistakes.add(0, f"longer than {MAX_ARGUMENT} bytes; save it in a file and submit that")
        script.warn(0, "the script is too long to be copied; it is run from where it is and must not change")
        return (*interpreter, where, *arguments)
    return (*interpreter, "-c", first_words + text, where, *arguments)


class _Script:
    """What the options of one script add up to."""

    def __init__(self, file: str, submitter: Submitter, mistakes: Mistakes) -> None:
        self.file = file
        self.submitter = submitter
        self.mistakes = mistakes
        self.warnings: list[str] = []
        self.counts: dict[str, int] = {}
        self.amounts: dict[str, int] = {}
        """Bytes by the option that gave them."""
        self.values: dict[str, Any] = {}
        self.environ = dict(submitter.environ)
        self.array: tuple[tuple[int, ...], int] = ((), 0)
        self.after: tuple[str, ...] = ()
        self.given: dict[str, Any] = {}
        """What the command line says in keys of specs, by field."""
        self.lines: dict[str, int] = {}
        self.ignored: dict[str, str] = {}
        """Values of options that are not honoured."""
        self.text = ""
        """Of a shell script."""

    def warn(self, line: int, text: str) -> None:
        self.warnings.append(located_text(self.file, line, text))

    def take(self, option: Option) -> None:
        """Account for one option; the last of a kind counts, as in sbatch."""
        handler = HONOURED.get(option.name)
        if handler is None:
            self.ignored[option.name] = option.value
            hint = HINTS.get(option.name, "")
            self.warn(option.line, f"{option.written} is not honoured" + (f": {hint}" if hint else ""))
            return
        try:
            handler(self, option)
        except UsageError as error:
            remedy = f"; {error.remedy}" if error.remedy else ""
            self.mistakes.add(option.line, f"{option.written}: {error.message}{remedy}")
        self.lines[option.name] = option.line

    def override(self, overrides: Sequence[Override]) -> None:
        """Account for options of the command line, after those of the script. GPUs counted there are counted in no other way."""
        if any(one.sbatch in ("gres", *_GPU_COUNTS) for one in overrides):
            for name in _GPU_COUNTS:
                self.counts.pop(name, None)
        for one in overrides:
            if one.sbatch:
                self.take(Option(one.sbatch, ",".join(one.values), COMMAND_LINE, one.written))
            else:
                self.given |= read_override(one, self.mistakes)

    def specs(self, command: tuple[str, ...]) -> list[JobSpec]:
        given = settled(self.given)
        self.environ = {**self.environ, **given.pop("env", {})}
        limit = given.pop("at_once", 0)
        if limit and not self.array[0]:
            self.mistakes.add(COMMAND_LINE, "--array-limit is of an array; give its indices: --array 0-9")
        nodes = self.counts.get("nodes", 1)
        ranks = given.pop("ranks", 0) or self._ranks(nodes)
        devices = given["devices"] if "devices" in given else self._devices(nodes, bool(given.keys() & _SHARES))
        self.values |= host_of_rank(self.amounts, self.counts.get("cpus-per-task", 0), nodes, ranks, devices)
        name = self.values.pop("name", "") or members.command_name((Path(self.file).stem,))
        if self.counts.get("nodes") == 1 and ranks > 1:
            self.values.setdefault("placement", "one-node")
        if ranks > 1 and "output" in self.values:
            self.warn(self._line_of("output"), "this file gets what task 0 prints; tide logs --all-ranks has all of it")
        batch = Batch(self.counts, self.amounts, ranks, self.ignored.get("partition", ""), self.submitter)
        self._calls(batch)
        environ = {**self.environ, **batch.variables(self.file)}
        values = {"workdir": self.submitter.workdir, "devices": devices, "name": name, **self.values, **given}
        values["notify"] = notify.popped(values, self.submitter.user)
        spec = JobSpec(command=command, ranks=ranks, env=environ, user=self.submitter.user, **values)
        for problem in problems(spec):
            key = problem.partition(":")[0]
            on_line = key in given or f"{key}_us" in given
            self.mistakes.add(COMMAND_LINE if on_line else self._line_of(key), problem)
        if self.mistakes.found:
            return []
        indices, limit = self.array[0], limit or self.array[1]
        return of_array(members.array(spec, indices, limit, fill=False)) if indices else [spec]

    def _calls(self, batch: Batch) -> None:
        """What its lines call that a task would refuse."""
        for finding in batch.findings(self.text):
            (self.mistakes.add if finding.sure else self.warn)(finding.line, finding.text)

    def _line_of(self, key: str) -> int:
        for name in _SOURCES.get(key, ()):
            if name in self.lines:
                return self.lines[name]
        return 1

    def _devices(self, nodes: int, share: bool) -> int:
        if share:
            return 1
        per_node = self.counts.get("gpus-per-node")
        if per_node is not None:
            return nodes * per_node
        total = self.counts.get("gpus")
        if total is not None:
            return total
        per_task = self.counts.get("gpus-per-task")
        if per_task is not None:
            return per_task * self._ranks(nodes)
        self.warn(
            0, "asks for no GPU; it takes one device per rank, as a job here holds one unless it is a runtime's client"
        )
        return self._ranks(nodes)

    def _ranks(self, nodes: int) -> int:
        if "ntasks" in self.counts:
            return self.counts["ntasks"]
        return nodes * self.counts.get("ntasks-per-node", 1)


_GPU_COUNTS = ("gpus", "gpus-per-node", "gpus-per-task")
_SHARES = frozenset({"gpu_memory", "gpu_milli", "gpu_share"})
_SOURCES = {
    "devices": ("gres", "gpus", "gpus-per-node", "gpus-per-task", "nodes"),
    "ranks": ("ntasks", "ntasks-per-node", "nodes"),
    "name": ("job-name",),
    "team": ("account",),
    "cpus": ("cpus-per-task",),
    "memory": ("mem", "mem-per-cpu", "mem-per-gpu"),
    "env": ("export",),
    "output": ("output",),
}


def _count(name: str) -> Callable[[_Script, Option], None]:
    def handle(script: _Script, option: Option) -> None:
        value = fields.whole(option.value)
        if not value:
            raise UsageError("0 is too few")
        script.counts[name] = value

    return handle


def _nodes(script: _Script, option: Option) -> None:
    least, dash, _ = option.value.partition("-")
    script.counts["nodes"] = max(1, fields.whole(least))
    if dash:
        script.warn(option.line, f"{option.written} {option.value}: a range is not honoured; {least} is taken")


def _gres(script: _Script, option: Option) -> None:
    for part in option.value.removeprefix("gres:").split(","):
        match = _GRES.fullmatch(part)
        if match is None:
            if part.startswith("gpu"):
                raise UsageError(f"not a number of GPUs: {part!r}", "write it like gpu:2 or gpu:a100:2")
            script.warn(option.line, f"{option.written}={part} is not honoured: only gpu is known")
            continue
        _gpus(script, "gpus-per-node", match["type"], match["count"] or "1")


def _gpu_count(name: str) -> Callable[[_Script, Option], None]:
    def handle(script: _Script, option: Option) -> None:
        match = _GPUS.fullmatch(option.value)
        if match is None:
            raise UsageError(f"not a number of GPUs: {option.value!r}", "write it like 2 or a100:2")
        _gpus(script, name, match["type"], match["count"])

    return handle


def _gpus(script: _Script, name: str, kind: str | None, count: str) -> None:
    script.counts[name] = fields.whole(count)
    if not script.counts[name]:  # as sbatch has it, this asks for none
        del script.counts[name]
    elif kind:
        script.values["device_types"] = fields.types(kind)


def _memory(name: str) -> Callable[[_Script, Option], None]:
    def handle(script: _Script, option: Option) -> None:
        script.amounts = {name: slurm_memory(option.value)}
        if not script.amounts[name]:
            script.warn(
                option.line, f"{option.written}=0 is all memory of the node in sbatch; here the job has no limit"
            )

    return handle


def _time(script: _Script, option: Option) -> None:
    """sbatch(1) --time: a bare number is minutes; 0 is no limit."""
    text = option.value.strip().lower()
    if text in fields.NO_LIMIT:
        script.values["max_duration_us"] = 0
    elif text.isdecimal():
        script.values["max_duration_us"] = fields.whole(text) * MINUTE
    else:
        script.values["max_duration_us"] = parse_duration(text)


def _job_name(script: _Script, option: Option) -> None:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", option.value)
    name = name if valid_name(name) and not name.isdigit() else f"job-{name}"
    if name != option.value:
        script.warn(option.line, f"{option.written}: the name becomes {name!r}")
    script.values["name"] = name


def _account(script: _Script, option: Option) -> None:
    script.values["team"] = option.value


def _qos(script: _Script, option: Option) -> None:
    if option.value.lower() not in ("premium", "standard", "basic"):
        script.warn(option.line, f"{option.written}={option.value} is not honoured: known are premium, standard, basic")
        return
    script.values["tier"] = option.value.lower()


def _output(script: _Script, option: Option) -> None:
    output = option.value.replace("%u", script.submitter.user or "%u")
    for letter in _PATTERN.findall(output):
        if letter not in "jxaA":
            script.warn(option.line, f"%{letter} in {option.written} is not honoured: known are %j, %x, %a and %A")
    script.values["output"] = output


def _chdir(script: _Script, option: Option) -> None:
    script.values["workdir"] = str(Path(script.submitter.workdir, option.value))


def _export(script: _Script, option: Option) -> None:
    parts = [part for part in option.value.split(",") if part]
    if "NIL" in parts or "NONE" in parts:
        script.environ = {name: value for name, value in script.environ.items() if name in ("HOME", "USER", "LOGNAME")}
        return
    kept = dict(script.submitter.environ) if "ALL" in parts else {}
    for part in parts:
        if "=" in part:
            name, value = fields.variable(part)
            kept[name] = value
        elif part != "ALL" and part in script.submitter.environ:
            kept[part] = script.submitter.environ[part]
    script.environ = kept


def _array(script: _Script, option: Option) -> None:
    script.array = fields.indices(option.value)


def _dependency(script: _Script, option: Option) -> None:
    script.after = tuple(f"{one.kind}:{one.ref}" for one in fields.dependencies(option.value))


def _hold(script: _Script, option: Option) -> None:
    script.values["hold"] = True


def _requeue(script: _Script, option: Option) -> None:
    script.values["preempt"] = "requeue"


def _mail_type(script: _Script, option: Option) -> None:
    script.values["mail_type"] = notify.kinds(option.value)
    for word in notify.left_out(option.value):
        script.warn(option.line, f"{option.written}={word} is not honoured")


def _mail_user(script: _Script, option: Option) -> None:
    script.values["mail_user"] = notify.addresses(option.value)


def _no_requeue(script: _Script, option: Option) -> None:
    script.values["preempt"] = "auto"
    script.warn(
        option.line, f"{option.written}: never preempted by a requeue; a job whose node is lost still starts again"
    )


HONOURED: dict[str, Callable[[_Script, Option], None]] = {
    "account": _account,
    "array": _array,
    "chdir": _chdir,
    "cpus-per-task": _count("cpus-per-task"),
    "dependency": _dependency,
    "export": _export,
    "gpus": _gpu_count("gpus"),
    "gpus-per-node": _gpu_count("gpus-per-node"),
    "gpus-per-task": _gpu_count("gpus-per-task"),
    "gres": _gres,
    "hold": _hold,
    "job-name": _job_name,
    "mail-type": _mail_type,
    "mail-user": _mail_user,
    "mem": _memory("mem"),
    "mem-per-cpu": _memory("mem-per-cpu"),
    "mem-per-gpu": _memory("mem-per-gpu"),
    "no-requeue": _no_requeue,
    "nodes": _nodes,
    "ntasks": _count("ntasks"),
    "ntasks-per-node": _count("ntasks-per-node"),
    "output": _output,
    "qos": _qos,
    "requeue": _requeue,
    "time": _time,
}
"""Options that shape the job; docs/slurm.md is checked against it."""

HINTS = {
    "constraint": "name device types instead (--gres=gpu:TYPE:N)",
    "deadline": "it takes a duration here: tide run --deadline 4h",
    "error": "stderr goes where stdout goes",
    "exclusive": "whole devices are never shared unless a job asks for a share",
    "partition": "there is one pool; name device types instead (--gres=gpu:TYPE:N)",
    "signal": "a job that is ended gets SIGTERM, and SIGKILL after its grace",
    "wait": "use tide submit --wait",
}
"""What to do instead of an option that is not honoured, where there is something."""
