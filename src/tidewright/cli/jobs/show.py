"""``tide show``: everything about one job."""

from __future__ import annotations

import click

from ...base.units import counted, format_bytes, format_duration
from ...model.job import TIER_TARGET, JobSpec
from ...wire.api import NO_EXIT_CODE, SCHEMA, ArrayView, JobView
from .. import output as out
from .. import words
from ..session import Session, pass_session


@click.command("show", short_help="Everything about a job.")
@click.argument("job")
@click.option("--env", "environment", is_flag=True, help="Its environment too.")
@out.json_option
@pass_session
def command(session: Session, job: str, environment: bool, output: str) -> None:
    """Show everything about JOB (an id or a unique name): request, placement, ledger, attempts, logs and story.

    Of an array, or of several of its members (12_[3-7]), how many are in which state, and how those ended that did not complete.
    """
    client = session.client()
    reply = client.lookup(job)
    view = reply.job
    if output == "json":
        out.print_json({"schema": SCHEMA, "job": view} | ({"array": reply.array} if reply.array else {}))
        return
    if reply.array is not None:
        out.print_facts(_array(reply.array, view))
        return
    out.print_facts([*_facts(view), *_images(view, client.info().now), *_ledger(view), *_request(view)])
    for log in view.logs:
        where = f" on {log.node}" if log.node else ""
        out.echo(f"log        attempt {log.attempt} rank {log.rank}{where}: {log.path}")
    if last := words.last_output(view):
        out.echo(f"\n{last}")
    if environment and view.spec is not None:
        out.echo("\nenvironment\n" + "\n".join(f"{name}={value}" for name, value in sorted(view.spec.env.items())))
    if view.story:
        out.echo("\nstory")
        out.print_facts(words.story(view.story), empty=True)


def _array(array: ArrayView, job: JobView) -> list[tuple[str, str]]:
    """A summary of several members; ``job`` is one of them."""
    by_state: dict[str, list[int]] = {}
    for one in array.members:
        by_state.setdefault(one.state, []).append(one.index)
    return [
        ("array", f"{array.id} ({array.name})" if array.id else array.name),
        ("members", f"{sum(array.states.values())} of {array.size}"),
        ("limit", f"{array.limit} at once" if array.limit else ""),
        *((state, f"{len(indices)}: [{words.ranges(indices)}]") for state, indices in by_state.items()),
        ("team", array.team + (f", user {array.user}" if array.user else "")),
        ("submitted", words.at(job.submit)),
        *((f"[{one.index}]", f"job {one.job} {one.state}, exit code {one.exit_code}: {one.why}")
          for one in array.members if one.why),
        ("next", f"one member in full: tide show {words.job_ref(job)}"),
    ]  # fmt: skip


_CLASSES = {"rt": "real-time", "be": "best-effort"}


def _facts(job: JobView) -> list[tuple[str, str]]:
    return [
        ("job", f"{job.id} ({job.name})" + (f", {words.job_ref(job)}" if job.array else "")),
        ("state", job.state + (f": {job.why}" if job.why else "")),
        ("exit code", str(job.exit_code) if job.exit_code != NO_EXIT_CODE else ""),
        ("tier", job.tier + _promised(job)),
        ("team", job.team + (f", user {job.user}" if job.user else "")),
        ("released", f"{words.at(job.held_until)}, or by tide resume {words.job_ref(job)}" if job.held_until else ""),
        ("devices", words.devices(job) + (f" on {words.places(job.where)}" if job.where else "")),
        (
            "wanted",
            f"{counted(job.wanted, 'device')}, by its user; tide scale {words.job_ref(job)} --reset ends that"
            if job.wanted
            else "",
        ),
        ("ranks", _ranks(job)),
        ("preemption", _level(job)),
        ("submitted", words.at(job.submit)),
        ("started", words.at(job.start)),
        ("ended", words.at(job.end) if job.end >= 0 else ""),
        ("attempt", str(job.attempt)),
    ]


def _promised(job: JobView) -> str:
    """The share of full speed that it was promised; of a job whose tier was changed, in the mean since its submission."""
    usual = TIER_TARGET[JobSpec(tier=job.tier).tier_rank] if job.spec is None or not job.spec.runtime else 0.0  # type: ignore[arg-type]
    if not usual and not job.target:
        return ""
    changed = " in the mean since its submission, by the tiers that it has had" if job.target != usual else ""
    return f", promised {words.percent(job.target)}{changed}"


def _level(job: JobView) -> str:
    """The level in force, and why it is not a higher one."""
    text = f"by {job.level}" if job.level and job.level != "none" else job.level
    return f"{text}: {job.level_why}" if job.level_why else text


def _ranks(job: JobView) -> str:
    if job.ranks_per_device <= 1:
        return str(job.ranks)
    return f"{job.ranks}, {job.ranks_per_device:g} sharing each device by time slices"


def _images(job: JobView, now: int) -> list[tuple[str, str]]:
    """What it could go on from, and what images cost it."""
    lines = []
    for image in reversed(job.images):
        age, size = (
            words.since(image.taken, now),
            format_bytes(image.size_bytes) if image.size_bytes else "size unknown",
        )
        places = ", ".join("the remote store" if place == "*" else place for place in image.where)
        lines.append(f"{image.serial}, taken {age} ago, {size}, on {places or 'no node that lives'}")
    due = f"next one in {format_duration(max(0, job.next_image - now))}" if job.next_image else ""
    took = [f"save {format_duration(job.save_us)}"] if job.save_us else []
    took += [f"of that {format_duration(job.hold_us)} to a standstill"] if job.hold_us else []
    took += _share(job)
    took += [f"restore {format_duration(job.restore_us)}"] if job.restore_us else []
    lost = f"{format_duration(job.lost_us)} of work, to failures and requeues" if job.lost_us else ""
    return [("images", "\n".join(lines) or ("none yet" if job.level == "full" else "")), ("", due),
            ("costs", ", ".join(took) if job.images else ""), ("lost", lost)]  # fmt: skip


def _share(job: JobView) -> list[str]:
    """What part of its run time periodic images take, and the part of that in which its ranks only wait for each other."""
    if not job.between_images_us:
        return []
    around = job.between_images_us + job.save_us
    waiting = f" ({100 * job.hold_us / around:.2g}% to a standstill)" if job.hold_us else ""
    every = format_duration(job.between_images_us)
    return [f"{100 * job.save_us / around:.2g}% of its time at one every {every}{waiting}"]


def _ledger(job: JobView) -> list[tuple[str, str]]:
    return [
        ("fraction", words.delivered(job) + (" (under its promise)" if words.short_of_target(job) else "")),
        ("delivered", f"{job.delivered_gpu_s:.1f} device-seconds of {job.held_gpu_s:.1f} held"),
        ("full speed", format_duration(job.ideal_us)),
        ("preempted", counted(job.preemptions, "time")),
    ]


def _request(job: JobView) -> list[tuple[str, str]]:
    spec = job.spec
    if spec is None:
        return [("command", job.command)]
    return [
        ("command", job.command),
        ("workdir", spec.workdir),
        ("output", spec.output),
        ("kind", spec.kind),
        ("runtime", f"{spec.runtime}, {_CLASSES[spec.runtime_class]} client" if spec.runtime else ""),
        ("types", ", ".join(spec.device_types)),
        ("share", _share_asked(spec, job)),
        ("host", _host(spec.cpus_milli, spec.memory, job.host_limits)),
        ("limit", f"{format_duration(spec.max_duration_us)} of run time" if spec.max_duration_us else ""),
        ("deadline", f"{format_duration(spec.deadline_us)} after submission" if spec.deadline_us else ""),
        ("workload", ", ".join(spec.workloads)),
        ("expected", _expected(job, spec.expected_us)),
        ("retries", str(spec.retries) if spec.retries else ""),
        ("preempt", spec.preempt if spec.preempt != "auto" else ""),
        ("imaged", _every(spec.checkpoint_us)),
        ("placement", spec.placement if spec.placement != "consolidate" else ""),
        ("after", ", ".join(f"{one.kind}:{one.job}{' (array)' if one.array else ''}" for one in spec.after)),
        ("array", _member_of(job)),
    ]


def _member_of(job: JobView) -> str:
    member = job.spec.array if job.spec is not None else None
    if member is None:
        return ""
    limit = f", {job.array_limit} at once" if job.array_limit else ""
    return f"index {member.index} of {f'array {job.array} ' if job.array else ''}({member.parent}){limit}"


def _expected(job: JobView, given_us: int) -> str:
    """Its user's estimate of the run time, else what similar jobs took."""
    if given_us or not job.predicted_us:
        return format_duration(given_us) if given_us else ""
    low, high = format_duration(job.predicted_low_us), format_duration(job.predicted_high_us)
    return f"{format_duration(job.predicted_us)} ({low} to {high}), as similar jobs took"


def _share_asked(spec: JobSpec, job: JobView) -> str:
    """What it asked for of one device."""
    parts = [f"{spec.gpu_share / 1000:g}"] if spec.gpu_share else []
    parts += [f"{counted(spec.gpu_milli, 'thousandth')} of the compute"] if spec.gpu_milli else []
    parts += [format_bytes(spec.gpu_memory)] if spec.gpu_memory else []
    if not parts:
        return ""
    effort = ", best effort" if spec.best_effort else ""
    return "; ".join(filter(None, (f"{' and '.join(parts)} of one device{effort}", job.memory_limit, job.share_limits)))


def _host(cpus_milli: int, memory: int, limits: str) -> str:
    """What each of its ranks asked for of its host, and how far that is enforced."""
    parts = [f"{cpus_milli / 1000:g} CPU{'s' * (cpus_milli != 1000)}"] if cpus_milli else []
    parts += [f"{format_bytes(memory)} of memory"] if memory else []
    return f"{' and '.join(parts)} for each rank" + (f"; {limits}" if limits else "") if parts else ""


def _every(checkpoint_us: int) -> str:
    """The user's wish on periodic images, if it is not the usual one."""
    if not checkpoint_us:
        return ""
    return "never by itself" if checkpoint_us < 0 else f"every {format_duration(checkpoint_us)} of run time"
