"""Simulated ranks. A gang trains in lockstep: a step is done by all of its ranks or by none."""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[int, int]


@dataclass
class Process:
    """The processes of one rank, shim included. ``step``: training steps done."""

    key: Key
    rank: int
    generation: int
    world: int
    total: int
    devices: tuple[int, ...]
    step: int = 0
    alive: bool = True
    """Something of it runs, or is stopped."""
    shim: bool = True
    code: int | None = None
    """What its shim has written down; None: nothing."""
    frozen: bool = False
    dumped: bool = False
    """Stopped by a dump."""
    held: bool = False
    quiesced: bool = False
    """Stands still at a cut, without connections."""
    cut: int = 0
    """The number of the cut at which it stood still last."""
    thawed: bool = False
    """Was frozen, on devices of others perhaps, and runs to hear that it is to end."""
    stubborn: bool = False
    """Ends by SIGKILL alone."""
    term: bool = False
    """Has been sent SIGTERM."""
    stands_since: float = 0.0
    """When it was first seen standing still though it is to run; 0: it runs."""
    suspect: bool = False
    """Its node was away while it ran: it may live elsewhere by now."""

    @property
    def runs(self) -> bool:
        return self.alive and not (self.frozen or self.dumped or self.held or self.quiesced)

    def end(self, code: int | None) -> None:
        """``code`` None: killed with its shim."""
        self.alive = self.shim = False
        self.code = code


@dataclass
class Ledger:
    """What must hold of all training, whatever happens. ``wrong`` says what did not."""

    wrong: list[str] = field(default_factory=list)
    finished: dict[int, int] = field(default_factory=dict)
    """Job to the steps that its ranks had done when they ended by themselves."""
    steps: int = 0
    restored: int = 0

    def train(self, processes: list[Process]) -> None:
        """One step of every gang that is whole and runs."""
        gangs: dict[Key, list[Process]] = {}
        for process in processes:
            if process.alive:
                gangs.setdefault(process.key, []).append(process)
        for key, gang in gangs.items():
            runs = {process.rank for process in gang if process.runs}
            if len(runs) == gang[0].world:
                self._step(key, [process for process in gang if process.runs])

    def _step(self, key: Key, gang: list[Process]) -> None:
        if len(gang) > gang[0].world:
            if not any(process.suspect for process in gang):
                self.wrong.append(f"{key}: a rank runs twice: {[(each.rank, each.generation) for each in gang]}")
            return
        if len({process.step for process in gang}) > 1:
            self.wrong.append(f"{key}: ranks of different cuts train together: {[each.step for each in gang]}")
        self.steps += 1
        for process in gang:
            process.step += 1
            if process.step >= process.total:
                process.end(0)
        if gang[0].step >= gang[0].total:
            self.finished[key[0]] = gang[0].step
