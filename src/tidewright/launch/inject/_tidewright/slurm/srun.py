"""``srun CMD``: the command in this task of a batch script, under the names that srun(1) gives a step."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from .options import StepRefused, parse
from .step import ANSWER, RUN, Step, task_of

LINE, SCRIPT = "TIDE_SLURM_LINE", "TIDE_SLURM_SCRIPT"
"""Variables: the line of the script that calls, and the script."""
_PATTERN = re.compile(r"%(\d*)([%AaJjNnstux])")
HELP = """usage: srun [OPTIONS] CMD [ARGUMENTS]

The batch script runs once per task, and srun runs CMD in this one. srun -N1 -n1 -w NODE CMD runs it on NODE only.
Options of srun(1) that a task cannot honour are refused. docs/slurm.md of Tidewright says which and why."""


def main() -> None:
    """The program. Ends with the command's own exit code, 1 for what is refused, 2 where it cannot be started."""
    program("srun", _srun)


def program(name: str, work: Callable[[list[str]], None]) -> None:
    """Run ``work`` on the arguments; what it refuses is named with the script's line."""
    try:
        work(sys.argv[1:])
        sys.stdout.flush()
    except StepRefused as error:
        script, line = os.environ.get(SCRIPT, ""), os.environ.get(LINE, "")
        where = f"{script}:{line}: " if script and line else script and script + ": "
        sys.stderr.write(f"{where}{name}: {error}\n")
        sys.exit(1)


def _srun(words: Sequence[str]) -> None:
    options, command = parse(words)
    asked = {option.name for option in options}
    if asked & {"help", "usage"}:
        print(HELP)
        return
    if "version" in asked:
        print("slurm 24.05 (the part of it that runs under Tidewright)")
        return
    environ = dict(os.environ)
    step = Step(options, command, task_of(environ))
    verdict = step.verdict()
    if verdict == ANSWER:
        print(step.answer())
    elif verdict == RUN:
        _run(step, environ)
    else:
        node = step.task.names[step.where]
        sys.stderr.write(
            "srun: {} runs on {}, not in task {}\n".format(command[0], node, environ.get("SLURM_PROCID", ""))
        )


def _run(step: Step, environ: dict[str, str]) -> None:
    environ.pop(LINE, None)
    environ.update(variables(step, environ))
    environ.update(step.export)
    directory, output, error = (step.asked.get(name) for name in ("chdir", "output", "error"))
    if directory:
        _change_directory(directory)
    if output:
        _redirect(step, output, environ, (1,) if error else (1, 2))
    if error:
        _redirect(step, error, environ, (2,))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and what is ignored stays so in the command
    sys.stdout.flush()
    try:
        os.execvpe(step.command[0], step.command, environ)
    except OSError as error:
        sys.stderr.write(f"srun: {step.command[0]}: {error.strerror}\n")
        sys.exit(2)


def variables(step: Step, environ: Mapping[str, str]) -> dict[str, str]:
    """What a step's task finds besides the variables of its job (srun(1), "OUTPUT ENVIRONMENT VARIABLES")."""
    found = {"SLURM_STEP_ID": "0", "SLURM_STEPID": "0"}
    if step.single:
        own = {
            "NTASKS": "1",
            "NPROCS": "1",
            "NNODES": "1",
            "PROCID": "0",
            "LOCALID": "0",
            "NODEID": "0",
            "STEP_NUM_TASKS": "1",
        }
        found.update({"SLURM_" + name: value for name, value in own.items()})
        found.update(
            SLURM_STEP_NUM_NODES="1", SLURM_STEP_TASKS_PER_NODE="1", SLURM_STEP_NODELIST=step.task.names[step.where]
        )
        return found
    for name, source in (
        ("STEP_NODELIST", "JOB_NODELIST"), ("STEP_NUM_NODES", "NNODES"), ("STEP_NUM_TASKS", "NTASKS"),
        ("STEP_TASKS_PER_NODE", "TASKS_PER_NODE"), ("STEP_GPUS", "JOB_GPUS"),
    ):  # fmt: skip
        if "SLURM_" + source in environ:
            found["SLURM_" + name] = environ["SLURM_" + source]
    return found


def _change_directory(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as error:
        raise StepRefused(f"--chdir {path}: {error.strerror}") from None


def _redirect(step: Step, pattern: str, environ: Mapping[str, str], numbers: Sequence[int]) -> None:
    """Tasks that write to one file append to it; a file of one task is begun anew, unless ``--open-mode=append``."""
    path, own = filled(pattern, environ)
    anew = (own or step.task.tasks == 1 or step.single) and not (step.asked.get("open-mode") or "t").startswith("a")
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if anew else 0) | os.O_APPEND, 0o666)
    except OSError as error:
        raise StepRefused(f"{path}: {error.strerror}") from None
    for number in numbers:
        os.dup2(opened, number)
    os.close(opened)


def filled(pattern: str, environ: Mapping[str, str]) -> tuple[str, bool]:
    """(path, whether it is of this task alone) of a file name with srun(1)'s patterns."""
    if pattern == "none":
        return os.devnull, False
    job, node = environ.get("SLURM_JOB_ID", ""), environ.get("SLURMD_NODENAME", "")
    values = {
        "%": "%", "A": environ.get("SLURM_ARRAY_JOB_ID", job), "a": environ.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "J": job + ".0", "j": job, "N": node.partition(".")[0], "n": environ.get("SLURM_NODEID", "0"), "s": "0",
        "t": environ.get("SLURM_PROCID", "0"), "u": environ.get("SLURM_JOB_USER", ""), "x": environ.get("SLURM_JOB_NAME", ""),
    }  # fmt: skip
    letters = [letter for _, letter in _PATTERN.findall(pattern)]
    path = _PATTERN.sub(lambda match: values[match.group(2)].zfill(int(match.group(1) or 0)), pattern)
    return path, "t" in letters
