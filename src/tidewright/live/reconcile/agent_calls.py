"""Commands into calls on agents. Pure: the book and what agents reported of themselves in, calls out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ...base.units import SECOND
from ...engine import images
from ...engine.book import Book
from ...engine.commands import CheckpointRanks, Command, DropImages, Launch, ResumeRanks, StopRanks, SuspendRanks
from ...engine.events import Event
from ...model.job import RUNTIME_CLASS, RUNTIME_SOCKET, Level, array_variables, share_of
from ...model.node import Allocation, RankPlace, bits, rank_layout
from ...wire import agent as wire
from .aggregate_reports import GONE
from .batch_variables import launch_variables
from .image_registry import ImageRegistry

STRAY_GRACE_US = 10 * SECOND


class Call(NamedTuple):
    """One call on one agent. ``op_id`` is the same whenever this request is repeated, also by a later controller.

    ``peers``: the attempt's nodes, when there are several; their addresses are filled in when the call is made.
    """

    node: str
    method: str
    args: Struct
    op_id: str
    job: int
    attempt: int
    peers: tuple[str, ...] = ()


class CallOutcome(NamedTuple):
    """What follows from a report: events for the engine, and calls that need no decision."""

    events: list[Event]
    calls: list[Call]


class MasterEndpoint(NamedTuple):
    """MASTER_ADDR and MASTER_PORT of one attempt."""

    address: str
    port: int


EndpointOf = Callable[[tuple[str, ...], str], MasterEndpoint]
"""The rendezvous of ranks on some nodes (in rank order), the same for the same name."""


class AgentCalls:
    """Makes calls of commands."""

    def __init__(self, book: Book, registry: ImageRegistry, master_endpoint: EndpointOf) -> None:
        self.book, self.registry, self._master_endpoint = book, registry, master_endpoint
        self.run_as = ""
        """The unix account of all jobs here; empty: as each job says."""

    def calls(self, command: Command) -> list[Call]:
        """The calls that carry out a command; none for commands that are not about ranks."""
        if isinstance(command, Launch):
            return self._launch(command)
        if isinstance(command, SuspendRanks):
            return self._suspend(command)
        if isinstance(command, ResumeRanks):
            return self._resume(command)
        if isinstance(command, CheckpointRanks):
            return self._checkpoint(command)
        if isinstance(command, StopRanks):
            stop = wire.StopArgs(job=command.job, attempt=command.attempt, grace_us=command.grace_us)
            return [self.call(node, "stop", stop) for node in self.where(command.job)]
        if isinstance(command, DropImages) and not command.keep and command.job in self.book.specs:
            return self.drop(command.job, command.attempt, command.nodes)
        return []

    def _launch(self, command: Launch) -> list[Call]:
        nodes = self.names(command.allocation)
        found = self.launch_args(command.job, command.attempt, command.allocation, command.image, command.image_job)
        return [self.call(node, "launch", args, nodes) for node, args in zip(nodes, found, strict=True)]

    def launch_args(
        self, job: int, attempt: int, allocation: Allocation, image: int, image_job: int = 0
    ) -> list[wire.LaunchArgs]:
        """The launch arguments of each node of an allocation; with ``image`` its ranks are restored from that serial, of another
        job with ``image_job``."""
        book, spec = self.book, self.book.specs[job]
        seats = rank_layout(allocation, spec.ranks)
        nodes = self.names(allocation)
        row = book.table.row[job]
        share = share_of(spec, book.board.layout.nodes[allocation[0].node].device_memory)
        endpoint = self._master_endpoint(nodes, f"{job}.{attempt} of {book.table.submit[row]}")
        for node in nodes if image else ():
            self.registry.sent(node, image_job or job)
        tasks = [(node, len(_on(seats, book.nodes[node]))) for node in nodes]
        env = {**self._environment(job), **launch_variables(book, job, tasks)}
        return [
            wire.LaunchArgs(
                job=job, attempt=attempt, name=spec.name, command=spec.command, env=env, workdir=spec.workdir,
                output=spec.output, array_index=spec.array.index if spec.array else -1,
                array=spec.array.job if spec.array else 0, world_size=spec.ranks,
                group_rank=group, groups=len(nodes), ranks=_on(seats, book.nodes[node]), beside=self._beside(job),
                devices=spec.devices,
                master_addr=endpoint.address, master_port=endpoint.port, grace_us=spec.grace_us,
                level=images.launch_level(book, job, allocation), tenant=spec.team,
                run_as=self.run_as or spec.run_as, image=image, image_job=image_job, gpu_memory=share.memory,
                gpu_milli=share.milli, share_class=spec.share_class, cpus_milli=spec.cpus_milli, memory=spec.memory,
                sources=self.registry.sources(image_job or job, image, node) if image else (),
            )
            for group, node in enumerate(nodes)
        ]  # fmt: skip

    def _environment(self, job: int) -> dict[str, str]:
        """Of a job as submitted; of a member of an array with which it is; of a runtime's client with where to find it."""
        spec, runtime = self.book.specs[job], self.book.specs.get(self.book.jobs[job].runtime_job)
        env = {**spec.env, **array_variables(spec.array)} if spec.array is not None and spec.array.job else spec.env
        if runtime is None:
            return env
        return {**env, RUNTIME_SOCKET: runtime.env.get(RUNTIME_SOCKET, ""), RUNTIME_CLASS: spec.runtime_class}

    def _beside(self, job: int) -> tuple[int, ...]:
        """The devices of the runtime whose client the job is."""
        runtime = self.book.allocations.get(self.book.jobs[job].runtime_job)
        return tuple(bits(runtime[0].mask)) if runtime is not None else ()

    def _suspend(self, command: SuspendRanks) -> list[Call]:
        spec, nodes = self.book.specs[command.job], self.names(command.allocation)
        args = wire.SuspendArgs(
            job=command.job, attempt=command.attempt, level=command.level, grace_us=spec.grace_us,
            bounded=self.book.jobs[command.job].held_in_place, serial=command.serial,
            previous=self._previous(command.job),
        )  # fmt: skip
        return [self.call(node, "suspend", args, nodes) for node in nodes]

    def _resume(self, command: ResumeRanks) -> list[Call]:
        nodes = self.names(command.allocation)
        if command.level != Level.FULL:
            seats = rank_layout(command.allocation, self.book.specs[command.job].ranks)
            found = [self._thaw(command, _on(seats, self.book.nodes[node])) for node in nodes]
            return [self.call(node, "resume", args) for node, args in zip(nodes, found, strict=True)]
        launches = self.launch_args(command.job, command.attempt, command.allocation, command.serial)
        return [
            self.call(node, "resume", restored(launch), nodes) for node, launch in zip(nodes, launches, strict=True)
        ]

    def _thaw(self, command: ResumeRanks, seats: tuple[wire.RankSeat, ...]) -> wire.ResumeArgs:
        ranks = tuple(wire.NewSeat(seat.rank, seat.devices) for seat in seats)
        return wire.ResumeArgs(job=command.job, attempt=command.attempt, ranks=ranks)

    def undo_suspend(self, node: str, job: int, attempt: int, serial: int) -> Call:
        """Have one node of an attempt undo its part of a suspension that failed elsewhere, or that is no longer wanted."""
        args = wire.ResumeArgs(job=job, attempt=attempt)
        nodes: tuple[str, ...] = ()
        if serial:
            allocation = self.book.allocations[job]
            nodes = self.names(allocation)
            args = restored(self.launch_args(job, attempt, allocation, serial)[nodes.index(node)], back=True)
        return self.call(node, "resume", args, nodes, "back")

    def _checkpoint(self, command: CheckpointRanks) -> list[Call]:
        nodes = self.names(command.allocation)
        args = wire.CheckpointArgs(
            job=command.job, attempt=command.attempt, serial=command.serial,
            previous=self._previous(command.job),
        )  # fmt: skip
        op_id = f"{command.job}.{command.attempt}.checkpoint.{command.serial}"
        peers = nodes if len(nodes) > 1 else ()
        return [Call(node, "checkpoint", args, op_id, command.job, command.attempt, peers) for node in nodes]

    def _previous(self, job: int) -> int:
        """The last image that the job could come back from by the book. No node knows that: of a gang another one may have
        failed, and of any job an image may be made after it was given up, or reported too late."""
        image = self.book.jobs[job].image
        return image.serial if image else 0

    def fetch(self, node: str, job: int, attempt: int, serial: int) -> Call | None:
        """A call that has a node fetch copies of the rank images it lacks; None when it lacks none."""
        spec = self.book.specs[job]
        ranks = self.registry.lacks(node, job, serial, spec.ranks)
        sources = self.registry.sources(job, serial, node)
        before = [image.serial for image in self.book.jobs[job].images if image.serial < serial]
        args = wire.FetchArgs(
            job=job, attempt=attempt, serial=serial, ranks=ranks, sources=sources, tenant=spec.team,
            previous=before[-1] if before else 0,
        )  # fmt: skip
        self.registry.sent(node, job)
        return Call(node, "fetch", args, f"{job}.{serial}.fetch", job, attempt) if ranks else None

    def drop(self, job: int, attempt: int, nodes: Iterable[str]) -> list[Call]:
        """Have every node that holds images of the job drop them, and what it has of a suspended attempt."""
        names = [node for node in dict.fromkeys([*nodes, *self.registry.where(job)]) if node in self.book.nodes]
        self.registry.drop(job)
        return [forget_call(node, job, attempt, images=True, left=True) for node in names]

    # -- lookups ----------------------------------------------------------------------------------------------------

    def where(self, job: int) -> tuple[str, ...]:
        """Nodes, other than dead ones, that hold processes of the job's attempt."""
        allocation = self.book.allocations.get(job)
        pinned = int(self.book.table.pinned_node[self.book.table.row[job]])
        nodes = self.book.board.layout.nodes
        names = self.names(allocation) if allocation is not None else (nodes[pinned].name,) if pinned >= 0 else ()
        return tuple(name for name in names if not self.is_dead(name))

    def is_dead(self, node: str) -> bool:
        """Whether the node is down, with everything on it."""
        return self.registry.dead.get(node, self.book.nodes[node] in self.book.dead)

    def names(self, allocation: Allocation) -> tuple[str, ...]:
        """The allocation's nodes, in rank order."""
        layout = self.book.board.layout
        return tuple(layout.nodes[part.node].name for part in allocation)

    def call(self, node: str, method: str, args: CallArgs, nodes: tuple[str, ...] = (), what: str = "") -> Call:
        """``since`` (when the job entered its state) tells the second suspension of an attempt from the first."""
        job, attempt = args.job, args.attempt
        peers = nodes if len(nodes) > 1 else ()
        return Call(node, method, args, f"{job}.{attempt}.{what or method}.{self._since(job)}", job, attempt, peers)

    def is_current(self, report: wire.JobReport) -> bool:
        """Whether a report answers the present request; assumed of reports without an op_id."""
        return not report.op_id or report.op_id.endswith(f".{self._since(report.job)}")

    def _since(self, job: int) -> int:
        return int(self.book.table.since[self.book.table.row[job]])


CallArgs = wire.LaunchArgs | wire.SuspendArgs | wire.ResumeArgs | wire.StopArgs


def restored(launch: wire.LaunchArgs, *, back: bool = False) -> wire.ResumeArgs:
    """A resumption from full images; ``launch`` carries everything that a launch of the same ranks would."""
    return wire.ResumeArgs(job=launch.job, attempt=launch.attempt, serial=launch.image, launch=launch, back=back)


def forget_call(node: str, job: int, attempt: int, images: bool = False, left: bool = False) -> Call:
    """Drop an attempt's records; see ``ForgetArgs``."""
    args = wire.ForgetArgs(job=job, attempt=attempt, images=images, left=left)
    kind = "forget" + ".images" * images + ".left" * left
    return Call(node, "forget", args, f"{job}.{attempt}.{kind}", job, attempt)


def stray_calls(node: str, report: wire.JobReport) -> list[Call]:
    """Calls for an attempt that the book does not know (any more): it must not run, and its records are dropped."""
    if report.state in GONE:
        return [forget_call(node, report.job, report.attempt)]
    if report.state == "stopping":
        return []
    if report.state == "suspended" and report.image is not None:
        return [forget_call(node, report.job, report.attempt, left=True)]
    return [stop_call(node, report.job, report.attempt, STRAY_GRACE_US)]


def refusal(call: Call, error: str, fault: str) -> wire.JobReport | None:
    """What an agent would report that could not carry a call out: of a launch, that no rank was started; of a suspension or a
    resumption, that the ranks are as they were.

    A refused launch is the fault of the node (its devices, disk or version). A fault of the job is reported by the agent, or the
    request is too large for any agent (``fault`` user).
    """
    if call.method == "launch":
        return wire.JobReport(
            job=call.job, attempt=call.attempt, state="failed", verb="launch", error=error,
            fault="user" if fault == "user" else "world",
        )  # fmt: skip
    if call.method not in _REFUSED:
        return None
    state, verb = _REFUSED[call.method]
    return wire.JobReport(
        job=call.job, attempt=call.attempt, state=state, verb=verb, error=error or "refused", op_id=call.op_id
    )


_REFUSED: Mapping[str, tuple[wire.Phase, wire.Verb]] = {
    "suspend": ("running", "suspend"),
    "resume": ("suspended", "resume"),
}


def without_answer(entry: wire.JobReport) -> wire.JobReport:
    """A report without what it answers to an earlier request, of which the present one is no repetition: a node that has failed
    that one, or was brought back after it, has not been heard of this one yet."""
    answers = entry.verb in ("suspend", "resume") and entry.state in ("running", "suspended")
    return replace(entry, verb="", error="", took_us=0) if answers else entry


def stop_call(node: str, job: int, attempt: int, grace_us: int) -> Call:
    """End an attempt that the book does not know."""
    args = wire.StopArgs(job=job, attempt=attempt, grace_us=grace_us)
    return Call(node, "stop", args, f"{job}.{attempt}.stop.0", job, attempt)


def with_peers(args: Struct, peers: tuple[wire.Peer, ...]) -> Struct:
    """The arguments of a call with the addresses of the attempt's agents."""
    if isinstance(args, wire.ResumeArgs):
        return replace(args, launch=replace(args.launch, peers=peers)) if args.launch is not None else args
    if isinstance(args, wire.LaunchArgs) and peers:
        return replace(args, peers=peers, master_addr=peers[0].address)
    return replace(args, peers=peers)


def _on(seats: list[RankPlace], node: int) -> tuple[wire.RankSeat, ...]:
    return tuple(wire.RankSeat(seat.rank, seat.local_rank, seat.devices) for seat in seats if seat.node == node)
