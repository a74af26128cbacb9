"""A short seed of the simulation, aimed at one kind of trouble: gangs that fit on no node, and little rest between requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tidewright.agent.machine import actions as do
from tidewright.agent.machine import image_actions as on_images
from tidewright.engine import events as ev
from tidewright.model.job import JobSpec

from .node import Node
from .scenario import Scenario

RESTORING: tuple[type, ...] = (on_images.RestoreRanks, on_images.EnterGeneration, on_images.ReadyImages)


@dataclass(frozen=True)
class Story:
    """``aims``: agents die at one of these kinds of action, ``kills`` as often, and are back within ``down_s``. ``slow``: how
    often a message is late; ``refused``, ``unlucky``: how often a suspension is refused, or a step of a kind fails."""

    asked: tuple[str, ...] = ("image", "image", "hold", "release", "release", "move")
    aims: tuple[tuple[type, ...], ...] = ((),)
    kills: float = 0.0
    down_s: float = 0.3
    slow: float = 0.0
    refused: float = 0.0
    unlucky: dict[type, float] = field(default_factory=dict)
    calm: bool = False
    """Every request is answered in time."""
    steady: bool = False
    """Ranks that are held for a cut stay so."""
    faithful: bool = True
    """No node loses its ranks."""


STORIES: dict[str, Story] = {
    "cuts": Story(slow=0.25, calm=True, steady=True, asked=("image", "image", "hold", "release")),
    "refusals": Story(slow=0.15, refused=0.3, calm=True),
    "restores": Story(
        asked=("hold", "release", "release", "move", "agent dies"), aims=(RESTORING, (do.ReleaseRanks,)), kills=0.1,
        unlucky={on_images.RestoreRanks: 0.2},
    ),
    "moments": Story(
        aims=((on_images.DumpRanks,), (do.GrantHold, do.CutGang), (do.ReleaseRanks,), (do.CommitRecord,), (do.AnswerRequest,)),
        kills=0.2,
    ),
    "boots": Story(
        asked=("hold", "release", "release", "reboot", "move"), unlucky={on_images.RestoreRanks: 0.1}, faithful=False
    ),
    "lines": Story(asked=("cut off", "connect", "connect", "hold", "release", "reconnect"), faithful=False),
    "deaths": Story(asked=("image", "hold", "release", "rank dies", "agent dies"), faithful=False),
}  # fmt: skip


class AimedScenario(Scenario):
    """``story``: one of ``STORIES``; by seed if none is named."""

    peace_s, strict = 1200.0, True

    def __init__(self, seed: int, story: str = "") -> None:
        super().__init__(seed)
        self.name = story or sorted(STORIES)[seed % len(STORIES)]
        self.story = STORIES[self.name]

    def _sizes(self) -> list[tuple[int, int]]:
        size = self.dice.choice([1, 2])
        return [(number, size) for number in range(self.dice.choice([2, 3]))]

    async def _act(self) -> None:
        dice, story = self.dice, self.story
        self._note(f"{self.name}: {story}")
        self.answers.calm, self.answers.faithful, self.answers.steady = story.calm, story.faithful, story.steady
        self._trouble(0.0, 0.0, 0.0)
        for number in range(dice.randint(1, 2)):
            self._submit_gang(number)
        await asyncio.sleep(1.0)
        self._aim(dice.choice(story.aims), story)
        for number in range(dice.randint(4, 10)):
            for turn in range(dice.randint(1, 3)):
                what = dice.choice(story.asked)
                self._note(what)
                self._acts()[what](f"{what}{number}.{turn}")
                await asyncio.sleep(dice.choice([0.0, 0.003, 0.05, 0.3]))
            await asyncio.sleep(dice.random() * dice.choice([0.2, 1.0, 2.0]))
        self._aim((), Story())
        if story.calm:
            await asyncio.sleep(15)
            self.answers.calm = False
        await self._peace()

    def _submit_gang(self, number: int) -> None:
        dice = self.dice
        size = max(node.spec.devices for node in self.nodes.values())
        spec = JobSpec(
            command=("work", str(dice.choice([100, 600, 3000]))), ranks=size + 1, devices=size + 1, placement="any",
            checkpoint_us=dice.choice([-1, 500_000]), grace_us=1_000_000,
        )  # fmt: skip
        self.site.put(ev.Submit(spec, f"gang{number}"))

    def _aim(self, at: tuple[type, ...], story: Story) -> None:
        self._note(f"agents die at {[each.__name__ for each in at]}")
        self.network.slow, self.network.steady = story.slow, story.steady
        for node in self.nodes.values():
            node.aim, node.aimed_kills, node.down_s = at, story.kills, story.down_s
            node.picky, node.unlucky = story.refused, story.unlucky

    def _power_on(self, node: Node) -> None:
        node.power_on(node.devices)

    def _acts(self) -> dict[str, Callable[[str], None]]:
        return {**super()._acts(), "rank dies": self._rank_dies, "reboot": self._reboot}

    def _reboot(self, _: str) -> None:
        node = self.nodes[self.dice.choice(sorted(self.nodes))]
        self._note(node.name)
        node.power_off()
        asyncio.get_running_loop().call_later(self.dice.uniform(0.02, 0.5), node.power_on, node.devices)

    def _rank_dies(self, _: str) -> None:
        found = [each for node in self.nodes.values() for each in node.processes if each.runs]
        if found:
            self.dice.choice(found).end(1)
