"""What a batch script calls of Slurm and MPI, checked before it runs: what a task would refuse is named with its line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...launch.inject._tidewright.slurm import scontrol
from ...launch.inject._tidewright.slurm.options import StepRefused, parse
from ...launch.inject._tidewright.slurm.others import INSTEAD
from ...launch.inject._tidewright.slurm.step import UNKNOWN, SlurmTask, Step
from .shell_commands import ShellCommand, shell_commands

MPI = frozenset({"mpirun", "mpiexec", "orterun"})
_DRAWN = frozenset({"mktemp", "shuf", "uuidgen"})
"""Programs whose output differs from task to task."""


@dataclass(frozen=True)
class ScriptFinding:
    """What is wrong with one line; ``sure``: the script cannot do what it is for."""

    line: int
    text: str
    sure: bool = False


def uses_srun(text: str) -> bool:
    """Whether a script starts its tasks with srun."""
    return any(command.words[0] == "srun" for command in shell_commands(text, {}))


def findings(text: str, task: SlurmTask, known: Mapping[str, str]) -> list[ScriptFinding]:
    """What cannot be honoured in a script whose tasks are like ``task``. ``known``: variables that its tasks will find."""
    commands = shell_commands(text, known)
    steps = any(command.words[0] == "srun" for command in commands)
    found = []
    for command in commands:
        check = _CHECKS.get(command.words[0].rsplit("/", 1)[-1])
        if check is not None:
            found += check(command, task)
        if steps and task.tasks > 1:
            found += _differs(command)
    return found


def _srun(command: ShellCommand, task: SlurmTask) -> list[ScriptFinding]:
    try:
        step = Step(*parse(command.words[1:]), task)
    except StepRefused as error:
        return [ScriptFinding(command.line, f"srun: {error}", command.sure)]
    if not step.single or step.is_question():
        return []
    if command.captured:
        why = "its output is known on one node only; of all tasks, only the answers of hostname are"
        return [ScriptFinding(command.line, f"srun: {why}", command.sure)]
    return [ScriptFinding(command.line, "srun: it runs on one node; tasks on other nodes go on without waiting for it")]


def _scontrol(command: ShellCommand, task: SlurmTask) -> list[ScriptFinding]:
    words = [word for word in command.words[1:] if not word.startswith("-")]
    if any(UNKNOWN in word for word in words[: 1 + (words[:1] == ["show"])]) or scontrol.known(words):
        return []
    return [ScriptFinding(command.line, f"scontrol: {scontrol.refusal(words)}")]


def _other(command: ShellCommand, task: SlurmTask) -> list[ScriptFinding]:
    name = command.words[0].rsplit("/", 1)[-1]
    return [ScriptFinding(command.line, f"{name}: not there under Tidewright: use {INSTEAD[name]}")]


def _mpi(command: ShellCommand, task: SlurmTask) -> list[ScriptFinding]:
    if task.tasks == 1:
        return []
    name = command.words[0]
    why = f"each of the {task.tasks} tasks would start it; ask for one task with all devices of a node (#SBATCH --ntasks=1)"
    return [ScriptFinding(command.line, f"{name}: {why}", command.sure)]


def _differs(command: ShellCommand) -> list[ScriptFinding]:
    name = command.words[0]
    if command.captured and (name in _DRAWN or (name == "date" and any("%N" in word for word in command.words))):
        why = (
            "each task finds another value here; make it from $SLURM_JOB_ID or $RANDOM, which all tasks have in common"
        )
        return [ScriptFinding(command.line, f"{name}: {why}")]
    return []


_CHECKS: dict[str, Callable[[ShellCommand, SlurmTask], list[ScriptFinding]]] = {
    "srun": _srun,
    "scontrol": _scontrol,
    **dict.fromkeys(INSTEAD, _other),
    **dict.fromkeys(MPI, _mpi),
}
