"""``scontrol show hostnames``: lists of hosts for the tasks of a batch script. The rest of scontrol(1) is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .hostlist import compress, expand
from .options import StepRefused
from .srun import program
from .step import addresses

INSTEAD = {
    "hold": "tide hold JOB",
    "release": "tide release JOB",
    "requeue": "tide requeue JOB",
    "resume": "tide resume JOB",
    "suspend": "tide suspend JOB",
    "update": "tide update JOB",
}
"""The commands that do it here."""


def main() -> None:
    """The program: exit code 0, or 1 for what is refused."""
    program("scontrol", run)


def run(words: Sequence[str]) -> None:
    """Print what is asked for. Raises StepRefused for all but lists of hosts."""
    words = [word for word in words if not word.startswith("-")]
    if not known(words):
        raise StepRefused(refusal(words))
    what = words[1].lower()
    try:
        names = expand(words[2] if len(words) > 2 else os.environ.get("SLURM_JOB_NODELIST", ""))
    except ValueError as error:
        raise StepRefused(f"show {what}: {error}") from None
    if what.startswith("hostl"):
        print(compress(sorted(names) if what == "hostlistsorted" else names))
    else:
        print("\n".join(reachable(name, addresses(os.environ), os.uname().nodename) for name in names))


def reachable(name: str, known: Mapping[str, str], here: str) -> str:
    """The name of a host; the address of an agent that shares this machine with others: its name is known to no resolver."""
    address = known.get(name, "")
    return address if address.startswith("127.") and name not in (here, here.partition(".")[0]) else name


def known(words: Sequence[str]) -> bool:
    """Whether the words after ``scontrol`` ask for a list of hosts."""
    what = words[1].lower() if len(words) > 1 else ""
    listed = "hostnames".startswith(what) or what in ("hostlist", "hostlistsorted")
    return list(words[:1]) == ["show"] and what.startswith("host") and listed


def refusal(words: Sequence[str]) -> str:
    """Why a call cannot be honoured, and what to do instead."""
    instead = INSTEAD.get(words[0] if words else "")
    if instead is None and list(words[:1]) == ["show"]:
        instead = "tide show JOB -o json"
    said = " ".join(words[:2]) or "without arguments"
    return "{} cannot be honoured: {}".format(
        said,
        "use " + instead if instead else "only show hostnames and show hostlist are",
    )
