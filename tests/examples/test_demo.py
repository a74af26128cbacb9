"""The demonstration's own judgement: it must notice what would make its claim false."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidewright.wire.api import JobView

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import demo
import demo_view

US = 1_000_000


def a_run(tier: str = "basic", preemptions: int = 2, **fields: object) -> demo_view.Run:
    program = demo_view.Program("p", tier, "train_mlp.py", 0, 1.0, steps=60, alone_us=5 * US, hash="aa")
    view = JobView(
        id=1, name="p", state="completed", tier=tier, preemptions=preemptions, exit_code=0, submit=0, end=9 * US
    )
    return demo_view.Run(program, "p", Path("p.json"), 1, view, **{"result": {"hash": "aa", "steps": 60}, **fields})


def test_a_kept_promise_passes() -> None:
    assert demo.judge([a_run(), a_run("premium", 0)]) == []


@pytest.mark.parametrize(
    "broken",
    [
        a_run(preemptions=1),
        a_run(steps_lost=50),
        a_run(result={"hash": "bb"}),
        a_run("premium", 0, result={"hash": ""}),
    ],
)
def test_a_broken_promise_is_named(broken: demo_view.Run) -> None:
    assert len(demo.judge([a_run(), broken])) == 1


def test_steps_shown_twice_are_counted() -> None:
    def log(*steps: int) -> str:
        return "".join(f"step {step}/200 loss 1.0\n" for step in steps)

    assert demo.steps_shown_twice(log(50, 100, 150, 200)) == 0
    assert demo.steps_shown_twice(log(50, 100, 50, 100, 150, 200)) == 100
    assert demo.steps_shown_twice(log(50, 50, 100)) == 50
    assert demo.steps_shown_twice("") == 0


class FakeClient:
    def __init__(self, now: int) -> None:
        self.now = now

    def info(self) -> FakeClient:
        return self


class FakeDemo:
    """Starts nothing; what would be started is in ``started``."""

    def __init__(self, now: int) -> None:
        self.client = FakeClient(now)

    def start(self, program: demo_view.Program, number: str = "") -> demo_view.Run:
        return demo_view.Run(program, program.name + number, Path("x"))


def holding(tier: str, state: str, preemptions: int, since: int = 0) -> demo_view.Run:
    program = demo_view.Program("p", tier, "train_mlp.py", 0, 1.0)
    view = JobView(id=1, name="p", state=state, tier=tier, preemptions=preemptions, since=since * US)
    return demo_view.Run(program, "p", Path("x"), 1, view)


@pytest.mark.parametrize(
    ("runs", "now_s", "sent"),
    [
        ([holding("basic", "running", 1), holding("basic", "running", 2)], 10, 2),
        ([holding("basic", "running", 2), holding("basic", "running", 2)], 10, 0),
        ([holding("basic", "running", 0), holding("basic", "running", 0)], 1, 0),
        ([holding("basic", "running", 0), holding("standard", "running", 0)], 10, 1),
        ([holding("basic", "running", 0), holding("basic", "resuming", 0)], 10, 1),
        ([holding("basic", "running", 0), holding("premium", "running", 0)], 10, 1),
        ([holding("basic", "running", 0), holding("premium", "queued", 0)], 10, 0),
        ([holding("basic", "running", 0), holding("standard", "queued", 0)], 10, 0),
        ([holding("basic", "running", 0), holding("basic", "running", 0, since=8)], 9, 1),
        ([holding("basic", "running", 0, since=6), holding("basic", "running", 0, since=8)], 9, 0),
        ([], 10, 0),
    ],
)
def test_a_wave_is_sent_when_it_will_hit(runs: list[demo_view.Run], now_s: int, sent: int) -> None:
    premium = [demo_view.Program(name, "premium", "train_gpt.py", 0, 1.0) for name in ("a", "b")]
    waves = demo.Waves(FakeDemo(now_s * US), premium)  # type: ignore[arg-type]
    before = len(runs)
    waves.send(runs)
    assert len(runs) - before == sent


def test_the_closing_table_shows_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert "equal" in demo_view.closing_row(a_run())[-2]
    assert "DIFFERENT" in demo_view.closing_row(a_run(result={"hash": "bb"}))[-2]
    assert demo_view.bar(5, 10, False) == "█" * 5 + "░" * 5
    assert demo_view.bar(50, 10, False).endswith("░")
