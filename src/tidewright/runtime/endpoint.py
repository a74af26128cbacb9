"""Which runtime a program connects to, and as what: as it says, or as its job is a client of one (``tide run --runtime``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, NamedTuple

from ..base.errors import UsageError
from ..model.job import RUNTIME_CLASS, RUNTIME_SOCKET

FOLLOW_S = 20.0
"""How long a client waits for its runtime to listen, or, when that is gone, for the scheduler to stop its job."""

ClientClass = Literal["rt", "be"]


class Endpoint(NamedTuple):
    """``of_job``: the runtime is that of the job to which this process belongs."""

    path: Path
    kind: ClientClass
    name: str
    of_job: bool


def endpoint(path: Path | str | None, kind: ClientClass | None, name: str) -> Endpoint:
    """Fill in what is not given from the environment of a job. Raises UsageError where that says nothing, or less than is
    asked for."""
    environ = os.environ
    socket, allowed = environ.get(RUNTIME_SOCKET, ""), environ.get(RUNTIME_CLASS, "")
    if path is not None:
        return Endpoint(Path(path), kind or "be", name, False)
    if not (socket and allowed):
        raise UsageError(
            "this program belongs to no job that is a client of a runtime",
            "start it with tide run --runtime NAME, or name the path of a runtime's socket",
        )
    if kind == "rt" and allowed != "rt":
        raise UsageError("this job is a best-effort client", "submit it with tide run --runtime NAME --class rt")
    job = f"{environ.get('TIDE_JOB_NAME', '')} (job {environ.get('TIDE_JOB_ID', '?')})"
    return Endpoint(Path(socket), kind or ("rt" if allowed == "rt" else "be"), name or job.strip(), True)
