"""sbatch(1)'s options: which there are, which take a value, and the splitting of ``#SBATCH`` lines into them.

Taken from the sbatch manual page of Slurm 24.05. Knows nothing of jobs.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from .located import Mistakes

SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "d": "dependency", "D": "chdir", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "I": "immediate",
    "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "m": "distribution", "M": "clusters",
    "N": "nodes", "n": "ntasks", "o": "output", "O": "overcommit", "p": "partition", "q": "qos", "Q": "quiet",
    "s": "oversubscribe", "S": "core-spec", "t": "time", "v": "verbose", "w": "nodelist", "W": "wait", "x": "exclude",
}  # fmt: skip
FLAGS = frozenset(
    {
        "contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit",
        "oversubscribe", "parsable", "propagate", "quiet", "reboot", "requeue", "resv-ports", "spread-job", "test-only",
        "use-min-nodes", "verbose", "wait", "no-shell", "stepmgr", "immediate",
    }
)  # fmt: skip
"""Options without a value, or whose value may only follow an equals sign."""
VALUED = frozenset(
    {
        "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters",
        "comment", "constraint", "container", "container-id", "core-spec", "cores-per-socket", "cpu-freq",
        "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "error", "exclude",
        "export", "export-file", "extra", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node",
        "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input", "job-name", "kill-on-invalid-dep",
        "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus",
        "network", "nice", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu",
        "ntasks-per-node", "ntasks-per-socket", "open-mode", "output", "partition", "power", "prefer", "priority",
        "profile", "qos", "reservation", "segment", "signal", "sockets-per-node", "switches", "thread-spec",
        "threads-per-core", "time", "time-min", "tmp", "tres-bind", "tres-per-task", "uid", "wait-all-nodes", "wckey",
        "wrap",
    }
)  # fmt: skip
KNOWN = FLAGS | VALUED
PREFIX = "#SBATCH"


@dataclass(frozen=True)
class Option:
    """One option as written; ``value`` is empty for a flag."""

    name: str
    value: str
    line: int
    written: str


def options(text: str, mistakes: Mistakes) -> tuple[list[Option], list[int]]:
    """(options, lines of ``#SBATCH`` that come too late): sbatch reads them only before the first command."""
    found: list[Option] = []
    late: list[int] = []
    commands = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(PREFIX) and line[len(PREFIX) : len(PREFIX) + 1] in ("", " ", "\t"):
            if commands:
                late.append(number)
            else:
                found.extend(_line(line[len(PREFIX) :], number, mistakes))
        elif line.strip() and not line.lstrip().startswith("#"):
            commands = True
    return found, late


def _line(text: str, number: int, mistakes: Mistakes) -> list[Option]:
    try:
        tokens = shlex.split(text, comments=True)
    except ValueError as error:
        mistakes.add(number, f"cannot read this line: {str(error).lower()}")
        return []
    found = []
    while tokens:
        option = _option(tokens, number, mistakes)
        if option is not None:
            found.append(option)
    return found


def _option(tokens: list[str], number: int, mistakes: Mistakes) -> Option | None:
    """Takes one option, and its value when that is a token of its own, off the front."""
    written = tokens.pop(0)
    name, value, has_value = _name(written)
    if name is None:
        mistakes.unknown(number, "sbatch option", written.partition("=")[0], [f"--{known}" for known in sorted(KNOWN)])
        return None
    if name in VALUED and not has_value:
        if not tokens:
            mistakes.add(number, f"{written}: no value")
            return None
        value = tokens.pop(0)
    return Option(name, value, number, written.partition("=")[0])


def _name(written: str) -> tuple[str | None, str, bool]:
    """(name, value, value given) of ``--name``, ``--name=value``, an unambiguous ``--na``, ``-n4`` or ``-n``."""
    if written.startswith("--"):
        given, equals, value = written[2:].partition("=")
        matches = [known for known in sorted(KNOWN) if known.startswith(given)] if given else []
        name = given if given in KNOWN else matches[0] if len(matches) == 1 else None
        return name, value, bool(equals)
    if written.startswith("-") and len(written) > 1:
        return SHORT.get(written[1]), written[2:].removeprefix("="), len(written) > 2
    return None, "", False
