"""What the controller adds to the variables of a job from a batch script when it launches."""

from __future__ import annotations

from pathlib import Path

from tests.live.test_reconciler import Play
from tidewright.app.jobspec.loaded import Submitter
from tidewright.app.jobspec.sbatch import load
from tidewright.base.units import MINUTE, SECOND
from tidewright.engine import events as ev
from tidewright.engine.commands import Launch
from tidewright.policy.registry import make
from tidewright.wire.agent import LaunchArgs


def launched(play: Play, options: str) -> list[LaunchArgs]:
    """The launch calls of a batch script, by node."""
    text = f"#!/bin/bash\n#SBATCH {options}\nsrun hostname\n"
    specs = load(Path("/nowhere/job.sh"), text, Submitter({}, "/srv", "ada")).specs
    arrived = [ev.Submit(spec, f"op{at}", array_of="op0" if spec.array else "") for at, spec in enumerate(specs)]
    play.engine.step(play.now + 1, arrived)
    plan = ev.PlanReady(make("fifo").plan(play.engine.view()))
    launches = [command for command in play.engine.step(play.now + 2, [plan]) if isinstance(command, Launch)]
    return [
        call.args for launch in launches for call in play.reconciler.calls(launch) if isinstance(call.args, LaunchArgs)
    ]


def test_one_task_per_node_has_the_devices_of_one_node() -> None:
    """On nodes with six devices, two of each stay free: a task is never torn."""
    first, second = launched(Play(nodes=2, devices=6), "--nodes=2 --ntasks-per-node=1 --gres=gpu:4 --time=10 -A vision")
    assert [(seat.rank, seat.devices) for args in (first, second) for seat in args.ranks] == [
        (0, (0, 1, 2, 3)), (1, (0, 1, 2, 3)),
    ]  # fmt: skip
    assert first.env == second.env and first.env["TIDE_SLURM_HOSTS"] == "n0:1,n1:1"
    assert (first.env["SLURM_JOB_USER"], first.env["SLURM_JOB_ACCOUNT"]) == ("ada", "vision")
    lasts = int(first.env["SLURM_JOB_END_TIME"]) - int(first.env["SLURM_JOB_START_TIME"])
    assert lasts == 10 * MINUTE // SECOND and "SLURM_ARRAY_JOB_ID" not in first.env


def test_members_of_an_array_find_its_id() -> None:
    found = launched(Play(devices=4), "--array=3,5 --gres=gpu:1")
    assert [(args.job, args.env["SLURM_ARRAY_JOB_ID"], args.env["SLURM_ARRAY_TASK_ID"]) for args in found] == [
        (1, "1", "3"), (2, "1", "5"),
    ]  # fmt: skip
    assert all("SLURM_JOB_END_TIME" not in args.env for args in found)


def test_other_jobs_get_none() -> None:
    play = Play()
    job = play.running()
    args = play.reconciler.calls(Launch(job, 1, play.engine.book.allocations[job]))[0].args
    assert isinstance(args, LaunchArgs) and args.env == {}
