"""srun(1)'s options, and which of them a task can honour. Taken from the manual page of Slurm 24.05."""

from __future__ import annotations

from collections.abc import Sequence

SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "c": "cpus-per-task", "d": "dependency", "D": "chdir",
    "E": "preserve-env", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "I": "immediate", "i": "input",
    "J": "job-name", "K": "kill-on-bad-exit", "k": "no-kill", "L": "licenses", "l": "label", "M": "clusters",
    "m": "distribution", "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "q": "qos",
    "Q": "quiet", "r": "relative", "s": "oversubscribe", "S": "core-spec", "T": "threads", "t": "time",
    "u": "unbuffered", "v": "verbose", "W": "wait", "w": "nodelist", "X": "disable-status", "x": "exclude",
    "Z": "no-allocate",
}  # fmt: skip
FLAGS = frozenset(
    {
        "preserve-env", "hold", "no-kill", "label", "overcommit", "quiet", "oversubscribe", "unbuffered", "verbose",
        "disable-status", "no-allocate", "contiguous", "exact", "exclusive", "overlap", "multi-prog", "pty", "resv-ports",
        "spread-job", "use-min-nodes", "reboot", "debugger-test", "whole", "kill-on-bad-exit", "immediate", "propagate",
        "bcast", "send-libs", "interactive",
    }
)  # fmt: skip
"""Options without a value, or whose value may only follow an equals sign or, of a letter, directly."""
HARMLESS = frozenset(
    {
        "accel-bind", "account", "acctg-freq", "comment", "cores-per-socket", "cpu-bind", "cpu_bind", "cpu-freq",
        "cpus-per-gpu", "disable-status", "exact", "exclusive", "extra-node-info", "gpu-bind", "gpu-freq", "gres-flags",
        "hint", "immediate", "job-name", "kill-on-bad-exit", "label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu",
        "msg-timeout", "nice", "no-kill", "ntasks-per-core", "ntasks-per-socket", "overcommit", "overlap",
        "oversubscribe", "partition", "preserve-env", "profile", "propagate", "qos", "quiet", "resv-ports",
        "slurmd-debug", "sockets-per-node", "spread-job", "threads", "threads-per-core", "tres-bind", "unbuffered",
        "use-min-nodes", "verbose", "wait", "whole", "wckey",
    }
)  # fmt: skip
"""Cores, devices and memory are those of the task, the job ends with the first task that fails, and each task has its own log:
these options change nothing of it."""
MEANT = frozenset(
    {
        "chdir", "cpus-per-task", "distribution", "error", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres",
        "input", "jobid", "mpi", "nodelist", "nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "open-mode",
        "output", "relative",
    }
)  # fmt: skip
"""Options that are honoured, or refused for what they ask."""
REFUSED = {
    "bcast": "copy the file to a directory that all nodes share",
    "container": "start the container in the command, e.g. srun apptainer exec IMAGE CMD",
    "container-image": "start the container in the command, e.g. srun apptainer exec IMAGE CMD",
    "container-mounts": "start the container in the command, e.g. srun apptainer exec --bind DIR IMAGE CMD",
    "epilog": "write the command into the script",
    "exclude": "each task runs where the job was placed",
    "het-group": "there are no heterogeneous jobs; submit two jobs",
    "multi-prog": "choose by $SLURM_PROCID in the script",
    "pack-group": "there are no heterogeneous jobs; submit two jobs",
    "prolog": "write the command into the script",
    "pty": "a task has no terminal; use tide run for interactive work",
    "signal": "a job that is ended gets SIGTERM, and SIGKILL after its grace",
    "task-epilog": "write the command into the script",
    "task-prolog": "write the command into the script",
    "time": "limit the job (#SBATCH --time), or the command with timeout(1)",
}
"""What to do instead of an option that cannot be honoured."""
KNOWN = (
    FLAGS
    | HARMLESS
    | MEANT
    | frozenset(REFUSED)
    | frozenset(
        {
            "batch", "bb", "bbf", "begin", "cluster-constraint", "clusters", "constraint", "container-id",
            "container-mount-home", "container-name", "container-workdir", "container-writable", "core-spec", "deadline",
            "delay-boot", "dependency", "export-file", "extra", "gid", "gpus-per-socket", "help", "hold", "licenses",
            "mcs-label", "mincpus", "network", "nodefile", "power", "prefer", "priority", "reservation", "segment",
            "switches", "thread-spec", "time-min", "tmp", "tres-per-task", "uid", "usage", "version", "x11",
        }
    )
)  # fmt: skip


class StepRefused(Exception):
    """What a task cannot do, and what to do instead."""


class SrunOption:
    """One option as written; ``value`` is None where there is none."""

    def __init__(self, name: str, value: str | None, written: str) -> None:
        self.name, self.value, self.written = name, value, written


def parse(words: Sequence[str]) -> tuple[list[SrunOption], list[str]]:
    """(options, command) of the words after ``srun``. Raises StepRefused for an option that srun does not know."""
    found: list[SrunOption] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        options, at = _read(word, words, at + 1)
        found += options
    return found, list(words[at:])


def _read(word: str, words: Sequence[str], at: int) -> tuple[list[SrunOption], int]:
    """The options of one word, and where the next one stands."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return _valued([], _full(name, word), value if equals else None, "--" + name, words, at)
    found: list[SrunOption] = []
    rest = word[1:]
    while rest:
        name = SHORT.get(rest[0], "")
        if not name:
            raise StepRefused(f"-{rest[0]} is no option of srun; see srun(1)")
        letter, rest = "-" + rest[0], rest[1:]
        if name not in FLAGS or (rest and rest[0].isdigit()):
            return _valued(found, name, rest[rest.startswith("=") :] or None, letter, words, at)
        found.append(SrunOption(name, None, letter))
    return found, at


def _valued(
    found: list[SrunOption], name: str, value: str | None, written: str, words: Sequence[str], at: int
) -> tuple[list[SrunOption], int]:
    if value is None and name not in FLAGS:
        if at >= len(words):
            raise StepRefused(f"{written} has no value; see srun(1)")
        value, at = words[at], at + 1
    return [*found, SrunOption(name, value, written)], at


def _full(name: str, word: str) -> str:
    if name in KNOWN:
        return name
    matches = [known for known in sorted(KNOWN) if known.startswith(name)]
    if len(matches) != 1:
        raise StepRefused("{} is no option of srun; see srun(1)".format(word.partition("=")[0]))
    return matches[0]
