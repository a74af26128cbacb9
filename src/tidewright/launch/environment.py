"""The environment of a rank: what the submitter had, minus what is not theirs to pass on, plus the rank variables.

Pure functions over dictionaries; none of them reads a process's environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DENIED = frozenset(
    {
        "_", "SHLVL", "PWD", "OLDPWD", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID",
        "LISTEN_FDNAMES", "INVOCATION_ID", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "MAINPID",
        "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "SYSTEMD_EXEC_PID",
    }
)  # fmt: skip
"""Variables that speak of one process, not of its user: the shell's own, and what systemd.exec(5) hands a service."""

RANK_VARIABLES = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
        "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    }
)  # fmt: skip
"""Set by us for each rank; a submitter's own values would be of another job (torchrun(1), "Environment Variables")."""

_OTHER_JOB = ("TIDE_", "SLURM_", "SLURMD_", "SRUN_")
"""Beginnings of variables of the job that a submission comes from, if it comes from one."""
MARK = "TIDE_RANK_MARK"
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables that size the thread pools of numerical libraries."""
FOLLOWED = THREAD_LIMITS[0]
"""The variable that all of these libraries follow when their own is unset; torch takes the largest of them."""


@dataclass(frozen=True, slots=True)
class RankPosition:
    """A rank's place in its job. ``group_rank`` is the index of its node among the job's ``group_world_size`` nodes."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    master_addr: str
    master_port: int


def submitted_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of a submitting process's environment travels with its job, as sbatch(1) --export=ALL does.

    Left out: ``TIDE_*`` (ours, tokens among them) and ``SLURM_*``, variables of one process or service, and rank variables.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OTHER_JOB) and name not in DENIED and name not in RANK_VARIABLES
    }


def torch_variables(seat: RankPosition, run_id: str, restart_count: int) -> dict[str, str]:
    """What torchrun sets for a worker (pytorch.org/docs/stable/elastic/run.html, "Environment Variables")."""
    return {
        "RANK": str(seat.rank),
        "LOCAL_RANK": str(seat.local_rank),
        "WORLD_SIZE": str(seat.world_size),
        "LOCAL_WORLD_SIZE": str(seat.local_world_size),
        "GROUP_RANK": str(seat.group_rank),
        "GROUP_WORLD_SIZE": str(seat.group_world_size),
        "NODE_RANK": str(seat.group_rank),
        "ROLE_RANK": str(seat.rank),
        "ROLE_WORLD_SIZE": str(seat.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": seat.master_addr,
        "MASTER_PORT": str(seat.master_port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
    }


def rank_environment(
    given: Mapping[str, str],
    devices: Mapping[str, str],
    seat: RankPosition,
    *,
    job: int,
    name: str,
    attempt: int,
    step_file: str,
    mark: str,
) -> dict[str, str]:
    """The whole environment of a rank. ``given`` is the job's own, ``devices`` what the device backend adds.

    ``mark`` is inherited by everything the rank starts, and tells whose it is when all else is lost. A thread limit
    that the user set lower than the slot allows stays; a higher one is cut to the slot. OMP_NUM_THREADS alone is a limit
    for all of them, as it is without us.
    """
    chosen = {**given, **devices}
    for variable in THREAD_LIMITS:
        chosen.update(_lower(variable, given, devices))
    chosen.update(torch_variables(seat, run_id=f"tide-{job}", restart_count=max(0, attempt - 1)))
    chosen.update(
        {"TIDE_JOB_ID": str(job), "TIDE_JOB_NAME": name, "TIDE_ATTEMPT": str(attempt), "TIDE_STEP_FILE": step_file}
    )
    chosen[MARK] = mark
    chosen.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    return chosen


def _lower(variable: str, given: Mapping[str, str], devices: Mapping[str, str]) -> dict[str, str]:
    wanted, limit = given.get(variable, given.get(FOLLOWED, "")), devices.get(variable, "")
    if wanted.isdecimal() and limit.isdecimal() and 0 < int(wanted) < int(limit):
        return {variable: wanted}
    return {}
