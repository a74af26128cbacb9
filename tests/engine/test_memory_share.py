"""Shares of memory in the book: the answer to a submission, and what becomes of a job that is evicted for taking more."""

from __future__ import annotations

import pytest

from tidewright.base.units import SECOND
from tidewright.engine import events as ev
from tidewright.engine.settings import live_settings
from tidewright.explain.rehearsal import rehearse
from tidewright.model.cause import Code, reported
from tidewright.model.job import JobSpec, State
from tidewright.model.node import NodeSpec, Part
from tidewright.plan.moves import Start
from tidewright.policy.registry import make
from tidewright.testing.causes import history
from tidewright.testing.worldlet import Worldlet

GIB = 2**30
SHARE = JobSpec(command=("true",), gpu_memory=4 * GIB)


def world(kind: str, **fields) -> Worldlet:
    return Worldlet(1, 4, settings=live_settings(check_every=1), kind=kind, device_memory=40 * GIB, **fields)


def test_a_share_that_is_only_counted_is_accepted_with_a_warning_also_by_a_dry_run() -> None:
    pool = world("cpu")
    assert pool.reply(ev.Submit(SHARE, "s"), "s").warning == Code.SHARE_NOT_ENFORCED()
    warnings = rehearse(pool.engine, make("fifo"), [SHARE], samples=0).warnings
    assert warnings[0] == Code.SHARE_NOT_ENFORCED()
    assert not pool.reply(ev.Submit(JobSpec(command=("true",)), "t"), "t").warning


def test_a_pool_with_gpus_too_is_told_how_to_keep_off_the_slots() -> None:
    pool = world("cpu")
    pool.tell(ev.NodeUp(NodeSpec(name="g", kind="h100", devices=2, device_memory=80 * GIB), "1"))
    assert pool.reply(ev.Submit(SHARE, "s"), "s").warning == Code.SHARE_NOT_ENFORCED_ON_CPU(("h100",))
    only = JobSpec(command=("true",), gpu_memory=4 * GIB, device_types=("h100",))
    assert not pool.reply(ev.Submit(only, "t"), "t").warning


@pytest.mark.parametrize("retries", [0, 1])
def test_a_job_that_was_evicted_has_failed_by_itself_even_with_an_image(retries: int) -> None:
    pool = world("h100", full=True)
    job = pool.submit(1, gpu_memory=4 * GIB, retries=retries, checkpoint_us=-1)
    share = pool.engine.book.board.layout.share_milli(0, 4 * GIB)
    pool.plan(Start(job, (Part(0, 1, share),), "test"))
    pool.tell(ev.TakeImage(job, "i"))
    pool.tell(ev.Checkpointed(job, 1, 1, SECOND), ev.ImageCopied(job, 1, "*"))
    notice = "it uses 5000 MiB of device 0 and asked for 4096 MiB"
    pool.tell(ev.Noticed(job, 1, notice), ev.Noticed(job, 1, notice), ev.Noticed(job, 9, "of another attempt"))
    assert history(pool, job).count(reported(notice)) == 1
    assert reported("of another attempt") not in history(pool, job)
    pool.tell(ev.Exited(job, 1, 137, why=f"evicted: {notice}", own=True))
    if retries:
        assert pool.state(job) is State.HELD and not pool.engine.book.jobs[job].restore_from
    else:
        assert pool.ended[job].state == State.FAILED and pool.ended[job].code == 137
        assert pool.ended[job].why == reported(f"evicted: {notice}")
