"""From a launch request to one spec per rank: environment, cores, freezer group, log, directory, and image to restore."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...base.errors import UsageError
from ...checkpoint.cgroup import Freezer
from ...checkpoint.limits import NO_LIMITS, HostLimits, RankLimits
from ...devices.protocol import Backend, DeviceEnvironment, ShareGrant
from ...launch.environment import THREAD_LIMITS, RankPosition, rank_environment
from ...launch.memory_share import FRACTION, within
from ...launch.sandbox import RankSandbox, on_path
from ...model.batch import PER_TASK, is_batch, is_placed
from ...model.job import Level
from ...wire.agent import LaunchArgs, RankSeat
from ..layout import AgentLayout, workdir
from ..machine.validate import check
from .accounts import Account, account_of, slots_of
from .batch_tasks import TaskPlace, TaskSeat, task_place, task_variables
from .rank import Spec

log = logging.getLogger(__name__)

NO_SHARE = ShareGrant()


@dataclass(frozen=True)
class NodeContext:
    """What a node has to prepare ranks with. ``full``: they can be given namespaces of their own."""

    layout: AgentLayout
    backend: Backend
    freezer: Freezer
    full: bool = False
    limits: HostLimits = NO_LIMITS
    open_files: int = 0
    """Soft limit of open files of ranks; 0: the agent's own."""
    controller: Mapping[str, str] = field(default_factory=dict)
    """Variables by which a rank's own ``tide`` reaches the controller (``controller_variables``)."""


def controller_variables(where: str, token_file: str = "", ca: str = "") -> dict[str, str]:
    """What a rank's ``tide`` finds its controller by: a state directory of this machine, or a URL with its token's file."""
    if "://" not in where:
        return {"TIDE_STATE": where} if where else {}
    files = {"TIDE_TOKEN_FILE": token_file, "TIDE_CA": ca}
    return {"TIDE_URL": where, **{name: path for name, path in files.items() if path}}


def sharers(args: LaunchArgs, seat: RankSeat) -> int:
    """How many ranks of this attempt share the busiest device of ``seat``."""
    crowd = Counter(device for other in args.ranks for device in other.devices)
    return max(crowd[device] for device in seat.devices)


def _node(args: LaunchArgs, seat: RankSeat) -> TaskPlace:
    """The node of a rank as its program counts nodes: a batch script's may be part of one (see ``batch_tasks``)."""
    if is_placed(args.env):
        return task_place(args.env, seat.rank)
    return TaskPlace(args.group_rank, args.groups, seat.local_rank, [other.rank for other in args.ranks])


def counted(args: LaunchArgs) -> dict[int, tuple[int, ...]]:
    """The devices that each rank's program counts, as under torchrun: device LOCAL_RANK is its own. A rank is left out that
    counts its own alone: ranks have several devices each, share some, or were to see their own (--gpus-per-task)."""
    if is_batch(args.env) and PER_TASK in args.env:
        return {}
    nodes = dict[int, list[RankSeat]]()
    for seat in sorted(args.ranks, key=lambda each: each.rank):
        nodes.setdefault(_node(args, seat).node, []).append(seat)
    found = dict[int, tuple[int, ...]]()
    for seats in nodes.values():
        devices = tuple(dict.fromkeys(device for seat in seats for device in seat.devices))
        if all(len(seat.devices) == 1 for seat in seats) and len(devices) == len(seats):
            found |= {seat.rank: devices for seat in seats}
    return found


def places(args: LaunchArgs, node_context: NodeContext) -> dict[int, DeviceEnvironment]:
    """What each rank's devices give it. Raises UsageError for devices that do not exist."""
    if args.beside:
        runtime = node_context.backend.environment(args.beside)
        client = DeviceEnvironment({**runtime.env, "CUDA_VISIBLE_DEVICES": ""}, runtime.cpus)
        return {seat.rank: client for seat in args.ranks}
    shown = counted(args)
    found = {
        seat.rank: node_context.backend.environment(seat.devices, sharers(args, seat), shown.get(seat.rank, ()))
        for seat in args.ranks
        if seat.devices
    }
    if len(found) != len(args.ranks):
        raise UsageError("a rank without a device", "name at least one device for each rank")
    return {rank: _steady(place, args, node_context) for rank, place in found.items()}


def _steady(place: DeviceEnvironment, args: LaunchArgs, node_context: NodeContext) -> DeviceEnvironment:
    """Thread pools sized by what the job asked for: with other numbers on fewer devices its sums would differ."""
    node = node_context.backend.discover()
    if not args.devices or node.kind != "cpu":
        return place
    threads = max(1, node.cpus // node.devices * args.devices // args.world_size)
    return DeviceEnvironment({**place.env, **dict.fromkeys(THREAD_LIMITS, str(threads))}, place.cpus)


def rank_dir(args: LaunchArgs, node_context: NodeContext, rank: int, generation: int) -> RankSandbox | None:
    """The surroundings of a rank that may be suspended; None for one that only runs to its end."""
    if args.level in (Level.NONE, Level.REQUEUE, Level.COOPERATIVE):
        return None
    directory, account = node_context.layout.rank(args.job, args.attempt, rank, generation), account_of(args)
    full = node_context.full and (args.level in (-1, Level.FULL) or account is not None)
    if account is not None and not full:
        return None  # its box would lie behind directories that only root may enter
    return RankSandbox(directory / "box", slots_of(node_context.layout.slots, account), full)


def specs(
    args: LaunchArgs,
    node_context: NodeContext,
    generation: int = 0,
    restore: Mapping[int, dict[str, Any]] | None = None,
    grant: ShareGrant = NO_SHARE,
) -> dict[int, Spec]:
    """One spec per rank of this node. ``grant``: what its share of a device gives each of them. Raises UsageError for devices
    that do not exist."""
    check(args)
    around, account = places(args, node_context), account_of(args)
    made = {}
    batch = is_placed(args.env)
    cpus = node_context.backend.discover().cpus if batch else 0  # once: to look for devices takes a while
    for at in args.ranks:
        mark, place = node_context.layout.mark(args.job, args.attempt, at.rank, generation), around[at.rank]
        path, own = node_context.layout.rank_log(args, at.rank)
        inside = rank_dir(args, node_context, at.rank, generation)
        env = rank_environment(
            args.env,
            place.env,
            _seat(args, at, place.alone),
            job=args.job,
            name=args.name,
            attempt=args.attempt,
            step_file=args.step_file or str(node_context.layout.attempt(args.job, args.attempt) / "steps"),
            mark=mark,
        )
        if account is not None and inside is None:
            del env["TIDE_STEP_FILE"]  # it could not be written
        if batch:
            env.update(task_variables(env, _task(args, at, around, cpus, bool(inside and inside.full))))
        made[at.rank] = Spec(
            command=args.command,
            env=_with_share(
                {**_reaching(node_context, account), **env, **(inside.variables(env) if inside else {})}, grant
            ),
            workdir=workdir(args),
            log=path,
            own_log=own,
            fresh_log=own and args.attempt <= 1 and restore is None,
            cpus=place.cpus,
            cgroups=group(node_context.freezer, mark),
            limits=(limited := limit(node_context.limits, mark, args, grant, restore is not None)).groups,
            memory=args.memory,
            memory_group=limited.memory_group,
            late=limited.late,
            idle=grant.idle,
            grace_us=args.grace_us,
            open_files=node_context.open_files,
            rank_dir=inside.mounts() if inside else None,
            no_aslr=bool(inside and inside.full),
            account=account,
            restore=restore[at.rank] if restore else None,
        )
    return made


def _reaching(node_context: NodeContext, account: Account | None) -> Mapping[str, str]:
    """How its ``tide`` reaches the controller. A unix socket is for the operator: a rank of another account has none."""
    return node_context.controller if account is None or "TIDE_URL" in node_context.controller else {}


def _with_share(env: dict[str, str], grant: ShareGrant) -> dict[str, str]:
    """With what keeps a rank to its share of a device, and the wrapper, which has PyTorch keep to it."""
    wrapped = on_path(env) if FRACTION in grant.env and "TIDE_BOX" not in env else {}
    return {**env, **within(env, grant.env), **wrapped}


def _seat(args: LaunchArgs, at: RankSeat, alone: bool) -> RankPosition:
    """``alone``: it counts one device, so its local rank, by which programs choose theirs, is 0."""
    node = _node(args, at)
    return RankPosition(
        rank=at.rank,
        local_rank=0 if alone else node.local,
        world_size=args.world_size,
        local_world_size=1 if alone else len(node.ranks),
        group_rank=node.node,
        group_world_size=node.nodes,
        master_addr=args.master_addr,
        master_port=args.master_port,
    )


def _task(args: LaunchArgs, at: RankSeat, around: Mapping[int, DeviceEnvironment], cpus: int, full: bool) -> TaskSeat:
    return TaskSeat(
        job=args.job,
        name=args.name,
        attempt=args.attempt,
        rank=at.rank,
        devices={seat.rank: seat.devices for seat in args.ranks},
        cores={rank: place.cpus for rank, place in around.items()},
        cpus=cpus,
        addresses={peer.node: peer.address for peer in args.peers},
        master_addr=args.master_addr,
        python=sys.executable,
        full=full,
    )


def step_files(args: LaunchArgs, directory: Path) -> tuple[Path, ...]:
    """Where a rank's steps may be written: by the wrapper or program in its directory, or where the request said."""
    return (
        directory / "box" / "step",
        *((Path(args.step_file),) if args.step_file else ()),
        directory.parent / "steps",
    )


def limit(limits: HostLimits, mark: str, args: LaunchArgs, grant: ShareGrant, restored: bool) -> RankLimits:
    """Groups that limit one rank; none, with a warning, when they cannot be made (the rank then runs without limits)."""
    try:
        return limits.create(
            mark, args.cpus_milli, args.memory, restored=restored, weight=grant.weight, idle=grant.idle
        )
    except OSError as error:
        log.warning("no limits of CPUs and memory for %s: %s", mark, error)
        return RankLimits()


def group(freezer: Freezer, mark: str) -> tuple[str, ...]:
    """A freezer group for one rank; none, with a warning, when it cannot be made (the rank then cannot be frozen)."""
    try:
        return freezer.create(mark)
    except OSError as error:
        log.warning("no freezer group for %s: %s", mark, error)
        return ()
