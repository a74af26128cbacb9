"""``tide replay``: a recorded journal under another policy."""

from __future__ import annotations

from pathlib import Path

import click

from ..base.units import counted
from . import output as out
from .files import check_files, jobs_out_option, report_option
from .progress import progress
from .session import Session, pass_session
from .simulate import costs_option, horizon_option, present, profile_option


@click.command("replay", short_help="Run a recorded journal under another policy.")
@click.argument("journal", required=False, type=click.Path(path_type=Path))
@click.option("-p", "--policy", default="sla", show_default=True, metavar="NAME,...", help="Policies to compare.")
@click.option("-c", "--cluster", metavar="CLUSTER", help="Other nodes than the recorded ones, e.g. 4x8.")
@profile_option
@costs_option
@horizon_option
@jobs_out_option
@report_option
@out.json_option
@pass_session
def command(
    session: Session, journal: Path | None, policy: str, cluster: str | None, profile: str | None, costs: str,
    horizon: str, jobs_out: Path | None, report: Path | None, output: str,
) -> None:  # fmt: skip
    """Run the jobs recorded in JOURNAL again under each policy, in simulated time.

    JOURNAL is a state directory, its journal.db or an exported journal; by default the present state directory. A
    job's run time is the full-speed time it was delivered; jobs that had not ended are censored, and said to be.
    Launching, saving and restoring take as long as they did in the recording, unless --profile or --costs say otherwise.
    """
    from ..app.simulate import JobsTable, rerun

    check_files(report, jobs_out, reads=(journal or session.state, cluster, profile, costs))
    jobs = JobsTable() if jobs_out is not None else None
    with progress("replaying", total=1.0) as bar:
        results, recording = rerun(
            journal or session.state, policy, cluster,
            lambda name, done, total: bar.update(done / total, f"{name}: {done:,} of {counted(total, 'job')}"),
            profile=profile or "", costs=costs, horizon=horizon, jobs=jobs,
        )  # fmt: skip
    for note in recording.notes:
        out.note(f"note: {note}")
    present(results, output, report, jobs, jobs_out)
