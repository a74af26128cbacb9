"""The options of ``tide submit`` that win over what the file says: those of ``tide run``, and sbatch's own spellings.

An option that sbatch has under the same name means for a batch script what it means there (--time 30: minutes; --mem: a node's).
What sbatch knows and is not honoured here is accepted, not listed in the help, and named in a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from ...app.jobspec.overrides import Override
from ...app.jobspec.sbatch_options import FLAGS, KNOWN, SHORT


class SubmitOption(NamedTuple):
    """How it is written, the key of a YAML spec and the option of sbatch that it is (one may be empty), and its help. ``value``:
    what stands for a flag, which has no metavar. ``instead``: what to give for a YAML spec."""

    names: tuple[str, ...]
    key: str
    sbatch: str
    metavar: str
    text: str
    value: str = ""
    instead: str = ""


OPTIONS = (
    SubmitOption(("-g", "--devices"), "devices", "", "N|MIN:MAX", "Devices; a range makes the job elastic."),
    SubmitOption(("--ranks",), "ranks", "", "N", "Processes."),
    SubmitOption(("-n", "--ntasks"), "ranks", "ntasks", "N", "The same."),
    SubmitOption(("--type",), "device_types", "", "NAME[,NAME]", "Device types, best first."),
    SubmitOption(("--gpu-mem",), "gpu_memory", "", "SIZE", "A share of one device with this much memory."),
    SubmitOption(("--gpu-milli",), "gpu_milli", "", "N", "A share of one device with N thousandths of its compute."),
    SubmitOption(("--share",), "share", "", "F", "A share of one device, of its compute and its memory alike."),
    SubmitOption(("--class",), "class", "", "rt|be", "Real-time or best-effort, of a share or with --runtime."),
    SubmitOption(("--runtime",), "runtime", "", "NAME", "Be a client of this device runtime."),
    SubmitOption(("--cpus", "-c", "--cpus-per-task"), "cpus", "cpus-per-task", "N", "Host CPUs of each rank."),
    SubmitOption(("--mem",), "memory", "mem", "SIZE", "Host memory: of each rank of a YAML spec, of each node of a script."),
    SubmitOption(("--sla",), "tier", "", "TIER", "premium, standard or basic."),
    SubmitOption(("-q", "--qos"), "tier", "qos", "TIER", "The same."),
    SubmitOption(("--team",), "team", "", "NAME", "Who it is accounted to."),
    SubmitOption(("-A", "--account"), "team", "account", "NAME", "The same."),
    SubmitOption(("--name", "-J", "--job-name"), "name", "job-name", "NAME", "The job's name."),
    SubmitOption(("--deadline",), "deadline", "", "TIME", "Wanted end, counted from now."),
    SubmitOption(("-t", "--time", "--max-duration"), "max_duration", "time", "TIME",
                 "Stop it after so much run time; a bare number is seconds for a YAML spec, minutes for a script, as in sbatch."),
    SubmitOption(("--expect",), "expected", "", "TIME", "Your estimate of its run time."),
    SubmitOption(("--workload",), "workload", "", "NAME", "What it computes."),
    SubmitOption(("--weight",), "weight", "", "W", "Share among equals."),
    SubmitOption(("--env",), "env", "", "NAME=VALUE", "Set a variable; may be repeated."),
    SubmitOption(("--export",), "", "export", "ALL|NONE|…", "Which variables travel, as in sbatch.", instead="--env"),
    SubmitOption(("--workdir", "-D", "--chdir"), "workdir", "chdir", "DIR", "Where it runs."),
    SubmitOption(("--output", "-o"), "output", "output", "FILE", "Where rank 0 writes; %j id, %x name, %a index, %A array."),
    SubmitOption(("--retries",), "retries", "", "N", "How often a failure is tried again."),
    SubmitOption(("--level", "--preempt"), "preempt", "", "LEVEL", "Highest level of preemption."),
    SubmitOption(("--requeue",), "preempt", "requeue", "", "It may be preempted by ending it.", "requeue"),
    SubmitOption(("--no-requeue",), "preempt", "no-requeue", "", "It is never preempted by a requeue.", "auto"),
    SubmitOption(("--checkpoint-every",), "checkpoint_every", "", "TIME|auto|never", "Run time between images."),
    SubmitOption(("--placement",), "placement", "", "consolidate|…", "How close together its devices must lie."),
    SubmitOption(("--after", "-d", "--dependency"), "after", "dependency", "afterok:JOB",
                 "Run only when JOB (an id, an array, 12_3, or a name) has ended so; may be repeated."),
    SubmitOption(("-a", "--array"), "array", "array", "0-9%4", "One job per index (at most 4 at once)."),
    SubmitOption(("--array-limit",), "at_once", "", "N", "Members of the array or sweep that may run at once."),
    SubmitOption(("--mail-type",), "mail_type", "mail-type", "KIND[,KIND]", "Notify of begin, end, fail, …; all, none."),
    SubmitOption(("--mail-user",), "mail_user", "mail-user", "ADDRESS[,ADDRESS]", "Whom to mail. Default: you."),
    SubmitOption(("--webhook",), "webhook", "", "URL", "Send a signed POST there; may be repeated."),
    SubmitOption(("-N", "--nodes"), "", "nodes", "N", "Nodes, of a script: a factor of the next ones.", instead="-g"),
    SubmitOption(("--gres",), "", "gres", "gpu:N", "GPUs of each node, of a script.", instead="-g"),
    SubmitOption(("-G", "--gpus"), "", "gpus", "N", "GPUs in all, of a script.", instead="-g"),
    SubmitOption(("--gpus-per-node",), "", "gpus-per-node", "N", "GPUs of each node, of a script.", instead="-g"),
    SubmitOption(("--gpus-per-task",), "", "gpus-per-task", "N", "GPUs of each rank, of a script.", instead="-g"),
    SubmitOption(("--ntasks-per-node",), "", "ntasks-per-node", "N", "Ranks of each node, of a script.", instead="--ranks"),
    SubmitOption(("--mem-per-cpu",), "", "mem-per-cpu", "SIZE", "Host memory of each CPU, of a script.", instead="--mem"),
    SubmitOption(("--mem-per-gpu",), "", "mem-per-gpu", "SIZE", "Host memory of each GPU, of a script.", instead="--mem"),
)  # fmt: skip
_REPEATED = ("env", "after", "webhook")
_HERE = frozenset({"wrap", "wait", "test-only"})
"""Options of sbatch that tide submit has by itself."""


def override_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds them; the command finds what was given with ``overrides``."""
    taken = {name for param in getattr(command, "__click_params__", ()) for name in param.opts}
    for at, one in reversed(list(enumerate(OPTIONS))):
        kind: dict[str, Any] = (
            {"is_flag": True} if one.value else {"metavar": one.metavar, "multiple": one.key in _REPEATED}
        )
        command = click.option(*one.names, f"option_{at}", help=one.text, **kind)(command)
        taken |= set(one.names)
    short = {name: f"-{letter}" for letter, name in SHORT.items()}
    for name in sorted(KNOWN - _HERE):
        names = [each for each in (f"--{name}", short.get(name, "")) if each and each not in taken]
        if f"--{name}" in names:
            dest = f"sbatch_{name.replace('-', '_')}"
            command = click.option(*names, dest, hidden=True, is_flag=name in FLAGS)(command)
    return command


def misplaced(arguments: Sequence[str]) -> list[str]:
    """Of a script's arguments those that are options of tide submit, which may have been meant for it."""
    known = {name for one in OPTIONS for name in one.names}
    return [word for word in arguments if word.partition("=")[0] in known]


def _shown(one: SubmitOption) -> str:
    """How messages name it."""
    return next(name for name in one.names if name.startswith("--"))


def overrides(given: dict[str, Any]) -> list[Override]:
    """What was given, removed from ``given``; the options that nothing honours come last."""
    found = []
    for at, one in enumerate(OPTIONS):
        value = given.pop(f"option_{at}")
        if value in (None, False, ()):
            continue
        values = value if isinstance(value, tuple) else (one.value or value,)
        found.append(Override(_shown(one), one.key, one.sbatch, values, one.instead))
    for name in sorted(KNOWN):
        value = given.pop(f"sbatch_{name.replace('-', '_')}", None)
        if value not in (None, False):
            found.append(Override(f"--{name}", "", name, ("" if value is True else value,)))
    return found
