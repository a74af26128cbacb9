"""The controller is killed before and after each of its side effects; every job runs exactly once to its end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidewright.engine.commands import Reply
from tidewright.engine.events import Event
from tidewright.live.controller.loop import Loop

from ..sizes import examples
from . import controller
from .controller import crash

SHARES = 6
"""The crash points are dealt out to so many tests, which may run side by side."""
KINDS = {
    "own file", "clock base", "tables", "rows", "transaction", "watermark", "answer",
    *(f"call {verb}" for verb in ("inventory", "launch", "suspend", "resume", "stop", "forget")),
}  # fmt: skip


@pytest.fixture(scope="module")
def effects(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The side effects of a run without crashes."""
    return crash(tmp_path_factory.mktemp("whole"), []).fuses[0].effects


def test_the_scenario_has_every_kind_of_side_effect_and_is_the_same_again(memory: Path, effects: list[str]) -> None:
    assert set(effects) == KINDS
    assert crash(memory, []).fuses[0].effects == effects


BEFORE_AND_AFTER = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


@pytest.mark.full
@BEFORE_AND_AFTER
@pytest.mark.parametrize("share", range(SHARES))
def test_a_crash_at_any_side_effect(memory: Path, effects: list[str], share: int, after: bool) -> None:
    crash_at_each(memory, effects, after, range(1 + share, len(effects) + 1, SHARES))


@BEFORE_AND_AFTER
def test_a_crash_at_a_side_effect_of_each_kind(memory: Path, effects: list[str], after: bool) -> None:
    """Before the first and after the last of each kind. Those in between are shared out: a crash before every sixteenth side
    effect, after every sixteenth of the others."""
    some = range(8 if after else 16, len(effects) + 1, 16)
    first = {effects.index(kind) + 1 for kind in KINDS}
    last = {len(effects) - effects[::-1].index(kind) for kind in KINDS}
    crash_at_each(memory, effects, after, sorted({*some, *(last if after else first)}))


def crash_at_each(memory: Path, effects: list[str], after: bool, points: Iterable[int]) -> None:
    """One run for each of these side effects, counted from 1, at which the first life ends."""
    for at in points:
        where = f"cut {'after' if after else 'before'} side effect {at}, {effects[at - 1]!r}"
        root = memory / str(at)
        root.mkdir()
        try:
            site = crash(root, [at], after)
        except (Exception, AssertionError) as error:
            raise AssertionError(f"{where}: {error}") from error
        assert site.fuses[0].blown == effects[at - 1], where
        shutil.rmtree(root)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 60), min_size=2, max_size=8), after=st.booleans())
def test_crashes_upon_crashes(memory: Path, cuts: list[int], after: bool) -> None:
    shutil.rmtree(memory / "lives", ignore_errors=True)
    (memory / "lives").mkdir()
    crash(memory / "lives", cuts, after)


class _Hasty(Loop):
    """Answers before the turn is durable."""

    async def _commit(self, events: list[Event]) -> bool:
        for command in self.driver.engine.book.out:
            if isinstance(command, Reply):
                for replies in self._waiting.pop(command.op_id, ()):
                    replies.add(command)
        await asyncio.sleep(0.01)
        return await super()._commit(events)


def test_a_controller_that_answers_before_it_is_durable_is_found_out(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "Loop", _Hasty)
    with pytest.raises((AssertionError, TimeoutError)):
        for at in range(8, 32):
            (root := memory / str(at)).mkdir()
            crash(root, [at])
