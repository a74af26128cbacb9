"""A seed of the simulation in which much is asked of few gangs at once, and agents die at the moments that matter most."""

from __future__ import annotations

import asyncio

from tidewright.agent.machine import actions as do
from tidewright.agent.machine import image_actions as on_images
from tidewright.engine import events as ev
from tidewright.model.job import JobSpec

from .scenario import Scenario

AIMS: tuple[tuple[type, ...], ...] = (
    (on_images.RestoreRanks, on_images.RestoreDevices, on_images.MakeGeneration, on_images.ReadyImages),
    (do.ReleaseRanks, do.SaveRecord, do.PublishReport),
    (do.CommitRecord, on_images.DumpRanks, on_images.FinishDump, on_images.EnterGeneration),
    (do.CutGang, do.SendCutResult, do.GrantHold, on_images.UndoDump),
    (do.KillRanks, do.RemoveAttempt, do.AnswerRequest, do.CreateAttempt),
)
"""Moments at which agents are killed, those of a story at once."""


class DenseScenario(Scenario):
    """In one of three nothing is broken; in one, agents and controllers die; in one, everything happens."""

    async def _act(self) -> None:
        dice = self.dice
        kind = dice.choice(["calm", "kills", "everything"])
        self.answers.calm, self.answers.faithful = kind == "calm", kind != "everything"
        self._trouble(0.0, 0.0, 0.0)
        for number in range(dice.randint(1, 3)):
            self._submit_gang(number)
        await asyncio.sleep(1.5)
        if kind == "kills":
            self._aim(dice.choice(AIMS), dice.choice([0.03, 0.1]))
            self._trouble(0.0, 0.0, dice.choice([0.0, 0.01]))
        elif kind == "everything":
            self._aim(dice.choice(AIMS), dice.choice([0.0, 0.05]))
            self._trouble(dice.choice([0.1, 0.5]), 0.0, dice.choice([0.0, 0.01]))
        for number in range(dice.randint(4, 12)):
            await self._burst(number, kind)
        self._aim((), 0.0)
        if kind != "everything":
            await asyncio.sleep(15)
            self.answers.calm = False
        await self._peace()

    def _submit_gang(self, number: int) -> None:
        dice = self.dice
        room = sum(node.spec.devices for node in self.nodes.values())
        ranks = min(room, dice.choice([2, 3, 4]))
        spec = JobSpec(
            command=("work", str(dice.choice([60, 300, 900]))), ranks=ranks, devices=ranks, placement="any",
            checkpoint_us=dice.choice([-1, 300_000, 700_000]), grace_us=1_000_000,
        )  # fmt: skip
        self.site.put(ev.Submit(spec, f"gang{number}"))

    def _aim(self, at: tuple[type, ...], kills: float) -> None:
        self._note(f"agents die at {[each.__name__ for each in at]}: {kills}")
        for node in self.nodes.values():
            node.aim, node.aimed_kills = at, kills
            node.down_s = 0.5 if self.answers.faithful else 4.0  # nodes are given up after 2 s

    async def _burst(self, number: int, kind: str) -> None:
        """A few requests within a moment; then a moment or some time."""
        dice, acts = self.dice, self._acts()
        asked = ["image", "image", "hold", "release", "release", "move", "scale"]
        broken = ["agent dies", "power off", "power on", "cut off", "connect", "connect", "controller dies"]
        for turn in range(dice.randint(1, 4)):
            what = dice.choice(asked + (broken if kind == "everything" else []))
            self._note(what)
            acts[what](f"{what}{number}.{turn}")
            await asyncio.sleep(dice.choice([0.0, 0.003, 0.02, 0.3]))
        await asyncio.sleep(dice.random() * dice.choice([0.2, 1.0, 4.0]))
