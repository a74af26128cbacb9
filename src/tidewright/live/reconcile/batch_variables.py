"""Of a job from a batch script, what only the controller knows when it launches: names as sbatch(1) sets them."""

from __future__ import annotations

from collections.abc import Sequence

from ...base.units import SECOND
from ...engine.book import Book
from ...model.batch import HOSTS, is_batch


def launch_variables(book: Book, job: int, tasks: Sequence[tuple[str, int]]) -> dict[str, str]:
    """The variables of one attempt; none of a job that is from no batch script. ``tasks``: (node, tasks there) in rank order."""
    spec = book.specs[job]
    if not is_batch(spec.env):
        return {}
    begun = int(book.table.since[book.table.row[job]])  # the same when the call is repeated
    found = {
        HOSTS: ",".join(f"{name}:{count}" for name, count in tasks),
        "SLURM_JOB_USER": spec.user,
        "SLURM_JOB_ACCOUNT": spec.team,
        "SLURM_JOB_QOS": spec.tier,
        "SLURM_JOB_START_TIME": str(begun // SECOND),
    }
    if spec.max_duration_us:
        left = max(0, spec.max_duration_us - book.jobs[job].run_time_used_us)
        found["SLURM_JOB_END_TIME"] = str((begun + left) // SECOND)
    if spec.array is not None and spec.array.job:
        found["SLURM_ARRAY_JOB_ID"] = str(spec.array.job)
    return found
