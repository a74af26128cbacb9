"""From a launch request to one spec per rank: environment, cores, freezer group, log."""

from __future__ import annotations

import logging
from collections import Counter

from ..base.errors import UsageError
from ..checkpoint.cgroup import Freezer
from ..devices.protocol import Backend
from ..launch.environment import Seat, rank_environment
from ..wire.agent import LaunchArgs, RankSeat
from .layout import Layout, workdir
from .rank import Spec

log = logging.getLogger(__name__)


def check(args: LaunchArgs) -> None:
    """Raise UsageError for what no agent could launch."""
    numbers = [seat.rank for seat in args.ranks]
    if not args.command:
        raise UsageError("nothing to run", "give a command")
    if not numbers or len(set(numbers)) != len(numbers) or not all(0 <= rank < args.world_size for rank in numbers):
        raise UsageError(f"ranks {numbers} of a world of {args.world_size}", "name each rank of this node once")
    if any("\0" in text for text in (*args.command, *args.env, *args.env.values(), args.workdir, args.output)):
        raise UsageError("a zero byte in command, environment or path", "remove it; no program can be given one")


def sharers(args: LaunchArgs, seat: RankSeat) -> int:
    """How many ranks of this attempt share the busiest device of ``seat``."""
    crowd = Counter(device for other in args.ranks for device in other.devices)
    return max(crowd[device] for device in seat.devices)


def specs(args: LaunchArgs, layout: Layout, backend: Backend, freezer: Freezer) -> dict[int, Spec]:
    """One spec per rank of this node. Raises UsageError for devices that do not exist."""
    check(args)
    places = {seat.rank: backend.environment(seat.devices, sharers(args, seat)) for seat in args.ranks if seat.devices}
    if len(places) != len(args.ranks):
        raise UsageError("a rank without a device", "name at least one device for each rank")
    made = {}
    for at in args.ranks:
        mark = layout.mark(args.job, args.attempt, at.rank)
        seat = Seat(
            at.rank,
            at.local_rank,
            args.world_size,
            len(args.ranks),
            args.group_rank,
            args.master_addr,
            args.master_port,
        )
        path, own = layout.rank_log(args, at.rank)
        made[at.rank] = Spec(
            command=args.command,
            env=rank_environment(
                args.env,
                places[at.rank].env,
                seat,
                job=args.job,
                name=args.name,
                attempt=args.attempt,
                step_file=step_file(args, layout),
                mark=mark,
            ),
            workdir=workdir(args),
            log=path,
            own_log=own,
            fresh_log=own and args.attempt <= 1,
            cpus=places[at.rank].cpus,
            cgroups=group(freezer, mark),
            grace_us=args.grace_us,
        )
    return made


def step_file(args: LaunchArgs, layout: Layout) -> str:
    """Where the program may write how many steps it has done."""
    return args.step_file or str(layout.attempt(args.job, args.attempt) / "steps")


def group(freezer: Freezer, mark: str) -> tuple[str, ...]:
    """A freezer group for one rank; none, with a warning, when it cannot be made (the rank then cannot be frozen)."""
    try:
        return freezer.create(mark)
    except OSError as error:
        log.warning("no freezer group for %s: %s", mark, error)
        return ()
