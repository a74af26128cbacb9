"""What steps come to on a simulated node."""

from __future__ import annotations

import asyncio
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any

import msgspec

from tidewright.agent.machine import actions as do
from tidewright.agent.machine import events as ev
from tidewright.agent.machine import image_actions as on_images
from tidewright.agent.machine.attempt import AttemptState
from tidewright.agent.machine.outcomes import RankOutcome
from tidewright.checkpoint.protocol import GangImage
from tidewright.model.job import Level
from tidewright.wire import agent as wire

from .cut import SimulatedCut
from .training import Key, Process

if TYPE_CHECKING:
    from .node import Node

POLL_S = 0.25
GONE_S = 30.0
OPEN_S = 900.0
FAILS: tuple[type, ...] = (
    do.CommitRecord, do.SuspendByDriver, do.ResumeByDriver, on_images.DumpRanks, on_images.StoreImage,
    on_images.FetchImages, on_images.ReadyImages, on_images.MakeGeneration,
)  # fmt: skip
"""Steps that fail now and then, with nothing done."""


class Steps:
    """On behalf of ``node``."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._known: dict[Key, tuple[int, AttemptState]] = {}

    def state(self, key: Key) -> AttemptState:
        """Also of an attempt that has left since the step began."""
        assert self.node.machine is not None
        found = self.node.machine.attempts.get(key)
        if found is not None:
            self._known[key] = self.node.life, found
        life, state = self._known[key]
        assert life == self.node.life
        return state

    def mine(self, key: Key) -> list[Process]:
        """Processes of the attempt's present ranks."""
        return self.node.ranks(key, self.state(key).record.generation)

    # -- steps that are more than one moment ------------------------------------------------------------------------

    def begin(self, what: do.Do) -> bool:
        """Whether the step sees to its own end."""
        assert what.key is not None
        if not isinstance(what.action, do.CreateAttempt | on_images.FetchImages):
            self.state(what.key)
        if isinstance(what.action, do.CutGang):
            SimulatedCut(self.node, what, what.key, what.action).begin()
            return True
        if isinstance(what.action, do.WriteEndpoints):
            self._meet(what, what.key, what.action)
            return True
        if isinstance(what.action, do.SendCutResult):
            key, result = what.key, what.action
            for peer in result.others:
                self.node.network.peer(
                    self.node, peer.node, lambda other: other.feed(ev.CutDecided(key, result.cut, result.why))
                )
        return False

    def _meet(self, what: do.Do, key: Key, step: do.WriteEndpoints) -> None:
        """The host opens the rendezvous; others poll it until it has."""
        node, state = self.node, self.state(key)
        job, peers, began = key[0], state.record.peers, asyncio.get_running_loop().time()
        if any(seat.rank == 0 for seat in state.args.ranks):
            if step.reset and node.disk.rendezvous.get(job) != state.record.rendezvous_generation:
                node.disk.rendezvous[job] = state.record.rendezvous_generation
            node.later(0.002, lambda: node.done_step(what, None))
            return
        if not peers or peers[0].node == node.name:
            node.failed_step(what, do.ActionFailed("the node that hosts its rendezvous is not connected"))
            return
        heard = began

        def look() -> None:
            nonlocal heard
            now, host = asyncio.get_running_loop().time(), node.network.nodes_by_name[peers[0].node]
            answers = host.running and host.online and host.powered and node.online
            heard = now if answers else heard
            if state.record.ending:
                node.failed_step(what, do.ActionFailed("its ranks are being ended"))
            elif answers and step.generation and host.failed.get(job) == step.generation:
                node.failed_step(what, do.ActionFailed("its ranks could not be restored elsewhere"))
            elif answers and (not step.generation or host.disk.rendezvous.get(job) == step.generation):
                node.done_step(what, None)
            elif now > heard + GONE_S or now > began + OPEN_S or (not answers and not step.generation):
                node.failed_step(what, do.ActionFailed("the rendezvous is not opened"))
            else:
                node.later(POLL_S, look)

        node.later(0.002, look)

    # -- steps ------------------------------------------------------------------------------------------------------

    def carry_out(self, key: Key, step: do.ActionStep) -> Any:
        """The result. Raises ActionFailed."""
        if isinstance(step, FAILS) and self.node.dice.random() < self.node.unlucky.get(
            type(step), self.node.trouble / 3
        ):
            raise do.ActionFailed(f"no luck with {type(step).__name__}", no_room=isinstance(step, do.CommitRecord))
        return self._do(step, key)

    @singledispatchmethod
    def _do(self, step: do.ActionStep, key: Key) -> Any:
        raise AssertionError(f"a step that is not simulated: {step}")

    @_do.register
    def _(self, step: do.CreateAttempt, key: Key) -> Any:
        self._check(step.args)
        self.node.disk.attempts[step.args.job, step.args.attempt] = encoded(step.args, step.record)
        return ()

    def _check(self, args: wire.LaunchArgs) -> None:
        devices = [device for seat in args.ranks for device in seat.devices]
        if any(device >= self.node.spec.devices for device in devices):
            raise self.node.usage_error("devices that do not exist")
        if args.world_size > len(args.ranks) and len(args.peers) < 2:
            self.node.ledger.wrong.append(f"{args.job}.{args.attempt} on {self.node.name} knows no peers")

    @_do.register
    def _(self, step: do.CheckSeats, key: Key) -> Any:
        if any(device >= self.node.spec.devices for seat in step.seats for device in seat.devices):
            raise self.node.usage_error("devices that do not exist")
        if step.launch is not None:
            self._check(step.launch)
            self.node.disk.attempts[key] = encoded(step.launch, None, self.node.disk.attempts[key][1])
        return {seat.rank: () for seat in step.seats}, ()

    @_do.register
    def _(self, step: do.CommitRecord, key: Key) -> None:
        self._save(key)

    def _save(self, key: Key) -> None:
        if key not in self.node.disk.attempts:
            raise do.ActionFailed("its records are gone")
        args, _ = self.node.disk.attempts[key]
        self.node.disk.attempts[key] = args, msgspec.json.encode(self.state(key).record)

    @_do.register
    def _(self, step: do.SpawnRanks, key: Key) -> Any:
        state, found = self.state(key), {}
        for seat in state.args.ranks:
            known = [each for each in self.mine(key) if each.rank == seat.rank]
            if state.record.ending and not known:
                found[seat.rank] = RankOutcome(127, error="stopped before it started", fault="world")
            elif not known:
                self._start(state, seat, 0, 0)
        return found

    def _start(self, state: AttemptState, seat: wire.RankSeat, step: int, generation: int) -> Process:
        args, dice = state.args, self.node.dice
        if state.record.boot != self.node.incarnation:
            self.node.ledger.wrong.append(f"{state.key} on {self.node.name}: started, though its boot is over")
        made = Process(
            state.key, seat.rank, generation, args.world_size, int(args.command[1]), seat.devices, step,
            stubborn=dice.random() < 0.2, suspect=not self.node.online,
        )  # fmt: skip
        self.node.processes.append(made)
        return made

    @_do.register
    def _(self, step: do.TerminateRanks, key: Key) -> None:
        for process in self.mine(key):
            if process.rank in step.ranks and process.alive:
                process.term = True
                self._hear(process)

    def _hear(self, process: Process) -> None:
        """SIGTERM is heard by what is not stopped."""
        if process.term and not process.stubborn and not (process.frozen or process.dumped):
            process.end(143)

    @_do.register
    def _(self, step: do.SweepRanks, key: Key) -> Any:
        for process in self.mine(key):
            if process.rank in step.ranks and process.alive:
                process.end(137)
        return ()

    @_do.register
    def _(self, step: do.KillRanks, key: Key) -> None:
        for process in self.mine(key):
            if process.rank in step.ranks:
                process.end(None if process.code is None else process.code)

    @_do.register
    def _(self, step: do.ReadEnding, key: Key) -> do.RankEnding:
        found = [each for each in self.mine(key) if each.rank == step.rank]
        if found and found[0].shim:
            return do.RankEnding(True, None)
        if not found or found[0].code is None:
            return do.RankEnding(False, None)
        return do.RankEnding(False, RankOutcome(found[0].code, ended=asyncio.get_running_loop().time()))

    @_do.register
    def _(self, step: do.TidyRank, key: Key) -> bool:
        return True

    @_do.register
    def _(self, step: do.FindDeviceFault, key: Key) -> str:
        return ""

    @_do.register
    def _(self, step: do.ReadLastLines, key: Key) -> Any:
        return ()

    @_do.register
    def _(self, step: do.FindControlPages, key: Key) -> bool:
        return self.state(key).args.world_size > 1

    @_do.register
    def _(self, step: do.PackRendezvous, key: Key) -> str:
        return "left"

    @_do.register
    def _(self, step: do.ReleaseRanks, key: Key) -> None:
        for process in self.mine(key):
            process.held = process.quiesced = False

    @_do.register
    def _(self, step: do.SendCutResult, key: Key) -> None:
        pass

    # -- suspension -------------------------------------------------------------------------------------------------

    @_do.register
    def _(self, step: do.CheckLevel, key: Key) -> str:
        refusing = self.node.picky or self.node.trouble / 5
        return "a debugger is attached" if self.node.dice.random() < refusing else ""

    @_do.register
    def _(self, step: do.SuspendByDriver, key: Key) -> Any:
        if step.level != Level.FREEZE:
            for process in self.mine(key):
                process.term = True
                self._hear(process)
            return None
        for process in self.mine(key):
            process.frozen = True
        return GangImage(driver="freeze", job=key[0], attempt=key[1], home=self.node.name)

    @_do.register
    def _(self, step: do.ResumeByDriver, key: Key) -> None:
        for process in self.mine(key):
            process.devices = self.state(key).record.devices[process.rank]
        self._thaw(key)

    @_do.register
    def _(self, step: do.DiscardImage, key: Key) -> None:
        for process in self.mine(key):
            process.thawed = process.thawed or process.frozen
        self._thaw(key)

    def _thaw(self, key: Key) -> None:
        for process in self.mine(key):
            process.frozen = False
            self._hear(process)

    # -- full images ------------------------------------------------------------------------------------------------

    @_do.register
    def _(self, step: on_images.MeasureRanks, key: Key) -> Any:
        return {}

    @_do.register
    def _(self, step: on_images.DumpRanks, key: Key) -> on_images.Dumped:
        ranks, image = self.mine(key), {}
        for process in ranks:
            if not process.alive:
                raise do.ActionFailed(f"rank {process.rank} ended", "ranks lost", ranks=(process.rank,))
            if process.world > 1 and not process.quiesced:
                self.node.ledger.wrong.append(
                    f"{key} on {self.node.name}: rank {process.rank} is dumped while it trains"
                )
            elif process.world > 1 and process.cut != step.serial:
                self.node.ledger.wrong.append(
                    f"{key} on {self.node.name}: image {step.serial} is taken of cut {process.cut}"
                )
            if self.node.dice.random() < self.node.trouble / 30:
                process.end(137)
                raise do.ActionFailed("CRIU has ended it", "ranks lost", ranks=(process.rank,))
            image[process.rank] = process.step
            process.dumped = not step.leave_running
        self.node.disk.raw[key[0], step.serial] = image
        return on_images.Dumped(100, GangImage(driver="criu", job=key[0], attempt=key[1]))

    @_do.register
    def _(self, step: on_images.UndoDump, key: Key) -> None:
        for process in self.mine(key):
            process.dumped = False
            self._hear(process)

    @_do.register
    def _(self, step: on_images.FinishDump, key: Key) -> None:
        record = msgspec.json.decode(self.node.disk.attempts.get(key, (b"", b"{}"))[1])
        image = self.node.disk.raw.get((key[0], self.state(key).record.serial), {})
        alive = any(process.alive for process in self.mine(key)) and self.state(key).record.ending != "stop"
        if alive and ("image" not in record or set(image) != set(self.state(key).numbers)):
            self.node.ledger.wrong.append(
                f"{key} on {self.node.name}: ranks are ended before their image counts {image} {record}"
            )
        for process in self.mine(key):
            process.end(None)

    @_do.register
    def _(self, step: on_images.DiscardRaw, key: Key) -> None:
        self.node.disk.raw.pop((key[0], step.serial), None)

    @_do.register
    def _(self, step: on_images.StoreImage, key: Key) -> int:
        raw = self.node.disk.raw.get((key[0], step.serial))
        if raw is None or not set(step.ranks) <= set(raw):
            raise do.ActionFailed("the raw image is not here", "unneeded")
        self.node.disk.store[key[0], step.serial] = dict(raw)
        return 10

    @_do.register
    def _(self, step: on_images.PushImage, key: Key) -> bool:
        return False

    @_do.register
    def _(self, step: on_images.PruneImages, key: Key) -> None:
        self._prune(key[0], step.newest, step.previous)

    def _prune(self, job: int, newest: int, previous: int = 0) -> None:
        """As ``Images.keep_newest``."""
        disk = self.node.disk
        serials = sorted({serial for held in (disk.raw, disk.store) for other, serial in held if other == job})
        old = [serial for serial in serials if serial <= newest][:-2]
        if 0 < previous < newest:
            kept = max((serial for serial in serials if serial <= previous), default=0)
            old = [serial for serial in serials if serial < newest and serial != kept]
        for serial in old:
            disk.raw.pop((job, serial), None)
            disk.store.pop((job, serial), None)

    @_do.register
    def _(self, step: on_images.DropImage, key: Key) -> None:
        self.node.disk.raw.pop((key[0], step.serial), None)
        self.node.disk.store.pop((key[0], step.serial), None)

    @_do.register
    def _(self, step: on_images.FetchImages, key: Key) -> int:
        args = step.args
        held = dict(self.node.disk.store.get((args.job, args.serial), {}))
        for rank in args.ranks:
            held |= self._from_peers(args.job, args.serial, rank, args.sources)
        if not set(args.ranks) <= set(held):
            raise do.ActionFailed("no node that has it answers")
        self.node.disk.store[args.job, args.serial] = held
        self._prune(args.job, args.serial, args.previous)
        return 10

    def _from_peers(self, job: int, serial: int, rank: int, sources: tuple[wire.Peer, ...]) -> dict[int, int]:
        for peer in sources:
            other = self.node.network.nodes_by_name[peer.node]
            if other.running and other.online and other.powered and self.node.online:
                for held in (other.disk.raw, other.disk.store):
                    if rank in held.get((job, serial), {}):
                        return {rank: held[job, serial][rank]}
        return {}

    @_do.register
    def _(self, step: on_images.HasRaw, key: Key) -> bool:
        return (key[0], step.serial) in self.node.disk.raw

    @_do.register
    def _(self, step: on_images.ReadyImages, key: Key) -> Any:
        disk, state, place = self.node.disk, self.state(key), (key[0], step.serial)
        held = {**disk.store.get(place, {}), **disk.raw.get(place, {})}
        for rank in state.numbers:
            if rank not in held:
                held |= self._from_peers(*place, rank, state.args.sources)
        if not set(state.numbers) <= set(held):
            self._look_everywhere(key, step.serial, set(state.numbers))
            raise do.ActionFailed(f"image {step.serial} cannot be had")
        disk.raw[place] = held
        if 0 in state.numbers:
            disk.rendezvous[key[0]] = state.record.rendezvous_generation
        return {}

    def _look_everywhere(self, key: Key, serial: int, ranks: set[int]) -> None:
        """Images that a job comes back from are kept, wherever it is that nobody answers. Those of attempts that the controller
        has given up, which an agent may still bring back until it hears of it, are not. Number 0 is none: a node that held a
        part of the image was lost while the job was to come back from it, and what is asked in vain ends the attempt."""
        network, place = self.node.network, (key[0], serial)
        disks = [node.disk for node in network.nodes_by_name.values()]
        kept = {rank for disk in disks for held in (disk.raw, disk.store) for rank in held.get(place, {})}
        if serial and not ranks <= kept and network.wants(self.node.name, key):
            self.node.ledger.wrong.append(f"image {place} of ranks {ranks - kept} is wanted, and gone")

    @_do.register
    def _(self, step: on_images.MakeGeneration, key: Key) -> on_images.Renewed:
        if key not in self.node.disk.attempts:
            raise do.ActionFailed("its records are gone")
        self.node.disk.attempts[key] = encoded(self.state(key).args, None, self.node.disk.attempts[key][1])
        return on_images.Renewed({})

    @_do.register
    def _(self, step: on_images.RestoreRanks, key: Key) -> Any:
        state, raw = self.state(key), self.node.disk.raw.get((key[0], step.serial), {})
        failing = self.node.unlucky.get(on_images.RestoreRanks, self.node.trouble / 3)
        if self.node.dice.random() < failing or not set(state.numbers) <= set(raw):
            return {state.numbers[0]: RankOutcome(127, error="no luck with this restore", fault="world")}
        for seat in state.args.ranks:
            made = self._start(state, seat, raw[seat.rank], state.record.generation)
            made.quiesced = made.world > 1
        self.node.ledger.restored += 1
        return {}

    @_do.register
    def _(self, step: on_images.RestoreDevices, key: Key) -> None:
        pass

    @_do.register
    def _(self, step: do.StopTimeSlices, key: Key) -> None:
        pass

    # -- effects ----------------------------------------------------------------------------------------------------

    def effect(self, key: Key, effect: do.Effect) -> None:
        node = self.node
        match effect:
            case do.SaveRecord():
                if key in node.disk.attempts and node.dice.random() >= node.trouble / 20:  # else a full disk
                    self._save(key)
            case do.WatchRanks(ranks):
                for rank in ranks:
                    self._watch(key, rank, self.state(key).record.generation)
            case do.RemoveAttempt():
                left = [each for each in node.ranks(key) if each.alive]
                if left:
                    node.ledger.wrong.append(f"{key} on {node.name}: forgotten with {len(left)} ranks alive")
                node.disk.attempts.pop(key, None)
                node.processes = [each for each in node.processes if each.key != key]
            case do.FailRendezvous():
                node.failed[key[0]] = self.state(key).record.rendezvous_generation
            case on_images.RemoveRaw(job, serial):
                node.disk.raw.pop((job, serial), None)
            case on_images.DropJobImages(job):
                self._drop_images(job)

    def _drop_images(self, job: int) -> None:
        """What is here by now, when there is time."""
        disk = self.node.disk
        found = [(held, place) for held in (disk.raw, disk.store) for place in held if place[0] == job]
        self.node.later(0.05, lambda: [held.pop(place, None) for held, place in found] and None)

    def _watch(self, key: Key, rank: int, generation: int) -> None:
        """Tell once the shim is gone."""

        def look() -> None:
            found = [each for each in self.node.ranks(key, generation) if each.rank == rank]
            if self.node.machine is None or key not in self.node.machine.attempts:
                return
            if any(each.shim for each in found):
                self.node.later(POLL_S, look)
            else:
                self.node.feed(ev.RankGone(key, rank, generation))

        self.node.later(0.01, look)


def encoded(args: wire.LaunchArgs, record: Any, encoded_record: bytes = b"") -> tuple[bytes, bytes]:
    return msgspec.json.encode(args), encoded_record or msgspec.json.encode(record)
