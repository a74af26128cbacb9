"""What becomes of one ``srun``: it runs in this task, it runs in another one, its answer is known, or it is refused.

A batch script runs once per task, so a step of all tasks is the command itself, in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .hostlist import expand, numbers
from .options import HARMLESS, REFUSED, SrunOption, StepRefused

UNKNOWN = "\0"
"""In a word whose value is known only when the script runs: nothing is refused for it before."""
_ADDRESS = frozenset({"-i", "-I", "--ip-address", "--all-ip-addresses", "--ip-addresses"})
_NAME = frozenset({"-s", "-f", "-A", "--short", "--fqdn", "--long"})
ONE_TASK = (
    "the other tasks would not wait for it; make it a job of its own, on which this one depends (#SBATCH "
    '--dependency=afterok:JOB), or run it where it is needed: if [ "$SLURM_PROCID" = 0 ]; then ...; fi'
)
RUN, ELSEWHERE, ANSWER = "run", "elsewhere", "answer"


class SlurmTask:
    """What a step is checked against. ``names`` is empty, and ``nodes`` 0, where they are not known yet; GPUs and CPUs are 0
    where the job asked for none. ``addresses``: of its nodes, by name."""

    def __init__(
        self, tasks: int, nodes: int, per_node: Sequence[int], *, gpus_per_node: int = 0, cpus: int = 0,
        names: Sequence[str] = (), node: int = 0, local: int = 0, job: str = "", addresses: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.tasks, self.nodes, self.per_node = tasks, nodes, per_node
        self.gpus_per_node, self.cpus = gpus_per_node, cpus
        self.names, self.node, self.local, self.job = list(names), node, local, job
        self.addresses = addresses or {}

    @property
    def even(self) -> int:
        """Tasks of each node; 0 where nodes have different numbers."""
        return self.per_node[0] if len(set(self.per_node)) == 1 else 0

    def node_of(self, host: str) -> int | None:
        """The index of the first node of this name or address; None for a host that is none of the job's."""
        return next((at for at, name in enumerate(self.names) if host in (name, self.addresses.get(name))), None)


def task_of(environ: Mapping[str, str]) -> SlurmTask:
    """The task whose environment this is. Raises StepRefused outside of a batch job."""
    try:
        return SlurmTask(
            tasks=int(environ["SLURM_NTASKS"]), nodes=int(environ["SLURM_NNODES"]),
            per_node=numbers(environ["SLURM_TASKS_PER_NODE"]), gpus_per_node=int(environ.get("SLURM_GPUS_ON_NODE") or 0),
            cpus=int(environ.get("SLURM_CPUS_PER_TASK") or 0), names=expand(environ["SLURM_JOB_NODELIST"]),
            node=int(environ["SLURM_NODEID"]), local=int(environ["SLURM_LOCALID"]), job=environ["SLURM_JOB_ID"],
            addresses=addresses(environ),
        )  # fmt: skip
    except (KeyError, ValueError):
        raise StepRefused(
            "it runs only in a task of a batch script; submit one with tide submit, or use tide run"
        ) from None


def addresses(environ: Mapping[str, str]) -> dict[str, str]:
    """Of the job's nodes, by name."""
    parts = (part.partition("=") for part in environ.get("TIDE_SLURM_ADDRESSES", "").split(",") if part)
    return {name: address for name, _, address in parts}


class Step:
    """One srun, read and checked. Raises StepRefused for what cannot be honoured."""

    def __init__(self, options: Sequence[SrunOption], command: Sequence[str], task: SlurmTask) -> None:
        self.task, self.command = task, list(command)
        self.asked: dict[str, str | None] = {}
        self.export: dict[str, str] = {}
        for option in options:
            self._take(option)
        if not command:
            raise StepRefused("no command is given; write srun [OPTIONS] CMD")
        self.single = self._single()
        self.where = self._where()

    def verdict(self) -> str:
        """``run``, ``elsewhere`` or ``answer``, in this task."""
        if not self.single:
            return RUN
        if self.answer():
            return ANSWER
        here = self.task.node == self.where and not self.task.local
        return RUN if here else ELSEWHERE

    def answer(self) -> str:
        """What ``hostname`` prints on the node of a single task: every task needs to know; empty for other commands."""
        program, words = self.command[0].rsplit("/", 1)[-1], set(self.command[1:])
        if program != "hostname" or not self.task.names or not words <= _ADDRESS | _NAME:
            return ""
        name = self.task.names[self.where]
        return self.task.addresses.get(name, name) if words & _ADDRESS else name

    def is_question(self) -> bool:
        """Whether every task learns the answer, wherever the command runs."""
        return self.command[0].rsplit("/", 1)[-1] == "hostname" and set(self.command[1:]) <= _ADDRESS | _NAME

    def _take(self, option: SrunOption) -> None:
        name, value = option.name, option.value
        if name in REFUSED:
            raise StepRefused(f"{option.written} cannot be honoured: {REFUSED[name]}")
        if name in HARMLESS or (value is not None and UNKNOWN in value):
            self.asked.setdefault(name, None)
            return
        check = _CHECKS.get(name)
        if check is None:
            raise StepRefused(f"{option.written} cannot be honoured: leave it out, or see docs/slurm.md")
        self.asked[name] = value
        try:
            why = check(self, value or "")
        except ValueError as error:
            why = str(error)
        if why:
            raise StepRefused(
                "{}{} cannot be honoured: {}".format(option.written, "" if value is None else " " + value, why)
            )

    def _single(self) -> bool:
        """Whether it is of one of several tasks. Other numbers than one and all are refused."""
        job, asked = self.task, self.asked
        numbers = {name: asked[name] for name in ("ntasks", "nodes", "ntasks-per-node") if name in asked}
        given = {name: _fewest(value) for name, value in numbers.items() if value is not None}
        if len(given) < len(numbers):
            return False  # known when the script runs
        if not job.nodes:
            return given.get("ntasks") == 1 and job.tasks > 1
        nodes = given.get("nodes", job.nodes)
        resized = "nodes" in given or "ntasks-per-node" in given
        usual = nodes * given.get("ntasks-per-node", job.even) if resized else job.tasks
        tasks = given.get("ntasks", usual)
        if tasks == job.tasks and (nodes == job.nodes or job.tasks == 1):
            return False
        if tasks == 1:
            return True
        raise StepRefused(
            f"{tasks} tasks on {nodes} nodes cannot be honoured: a step has all tasks of the job ({job.tasks} on {job.nodes} "
            "nodes) or, with -N1 -n1 -w NODE, one; submit parts of a job as jobs of their own (#SBATCH --array)"
        )

    def _where(self) -> int:
        """The index of the node of a single task."""
        names, asked = self.task.names, self.asked
        if not self.single:
            return 0
        relative, listed = asked.get("relative"), asked.get("nodelist")
        if "relative" in asked and "nodelist" in asked:
            raise StepRefused("-r and -w both say which node; give one of them")
        if relative is not None:
            return int(relative)
        if "nodelist" not in asked and not self.is_question():
            raise StepRefused(f"one task of {self.task.tasks} cannot be honoured: {ONE_TASK}")
        return self.task.node_of(expand(listed)[0]) or 0 if names and listed is not None else 0


Check = Callable[[Step, str], str]
"""Of an option's value: why it cannot be honoured; empty where it can."""


def _fewest(value: str) -> int:
    return int(value.partition("-")[0])


def _number(step: Step, value: str) -> str:
    return "" if value.isdecimal() and int(value) else "not a number from 1"


def _nodes(step: Step, value: str) -> str:
    return _number(step, value.partition("-")[0])


def _nodelist(step: Step, value: str) -> str:
    asked, names = expand(value), step.task.names
    if not asked:
        return "it names no node; write -w NODE, or leave it out"
    if not names:
        return ""
    strange = [name for name in asked if step.task.node_of(name) is None]
    if strange:
        return "{} is no node of this job ({})".format(strange[0], ",".join(names))
    if len(asked) > 1 and {step.task.node_of(name) for name in asked} != {step.task.node_of(name) for name in names}:
        return "a step runs on all nodes of the job, or on one"
    return ""


def _relative(step: Step, value: str) -> str:
    return "" if value.isdecimal() and int(value) < step.task.nodes else f"the job has {step.task.nodes} nodes"


def _cpus(step: Step, value: str) -> str:
    have = step.task.cpus
    if have and value.isdecimal() and int(value) > have:
        return f"the job has {have} CPUs per task (#SBATCH --cpus-per-task)"
    return _number(step, value)


def _gpus(per: str) -> Check:
    """A number of GPUs per node, per task or in all, which must be that of the job."""

    def check(step: Step, value: str) -> str:
        job, number = step.task, value.rsplit(":", 1)[-1].rsplit("=", 1)[-1]
        have = {"node": job.gpus_per_node, "task": job.gpus_per_node // (job.even or 1)}.get(
            per, job.gpus_per_node * job.nodes
        )
        count = int(number) if number.isdecimal() else 1
        return "" if not have or count == have else f"a step has all GPUs of its tasks ({have} here)"

    return check


def _gres(step: Step, value: str) -> str:
    if value == "none" or not any(part.split(":")[0] in ("gpu", "gres/gpu") for part in value.split(",")):
        return ""
    return _gpus("node")(step, value.split(",")[0])


def _mpi(step: Step, value: str) -> str:
    return (
        "" if value in ("none", "list") else "there is no PMI; start the ranks with torchrun, or one task with mpirun"
    )


def _distribution(step: Step, value: str) -> str:
    known = value in ("*", "block", "pack") or value.startswith("block:")
    return "" if known else "neighbouring tasks are on one node (block)"


def _export(step: Step, value: str) -> str:
    parts = value.split(",")
    if parts[0] != "ALL" or not all("=" in part for part in parts[1:]):
        return "write --export=ALL,NAME=VALUE, or env -i NAME=VALUE CMD"
    step.export.update(part.split("=", 1) for part in parts[1:])
    return ""


def _input(step: Step, value: str) -> str:
    return "" if value in ("none", "all") else "write < FILE"


def _output(step: Step, value: str) -> str:
    return "" if value not in ("all", "none") or value == "none" else "leave it out"


def _jobid(step: Step, value: str) -> str:
    return "" if not step.task.job or value == step.task.job else "a step is of its own job; submit a job instead"


def _accept(step: Step, value: str) -> str:
    return ""


_CHECKS: dict[str, Check] = {
    "chdir": _accept, "cpus-per-task": _cpus, "distribution": _distribution, "error": _output, "export": _export,
    "gpus": _gpus("job"), "gpus-per-node": _gpus("node"), "gpus-per-task": _gpus("task"), "gres": _gres, "input": _input,
    "jobid": _jobid, "mpi": _mpi, "nodelist": _nodelist, "nodes": _nodes, "ntasks": _number, "ntasks-per-node": _number,
    "open-mode": _accept, "output": _output, "relative": _relative,
}  # fmt: skip
