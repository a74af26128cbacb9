"""The demonstration's tour: asked for one by one, timed by the controller's clock."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tidewright.wire.api import DeviceHeld, JobView

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import demo_tour
import demo_view

US = 1_000_000


class FakeClient:
    """Notes what it is asked for; the time is what the test says."""

    def __init__(self) -> None:
        self.now, self.asked = 0, []  # type: ignore[var-annotated]

    def info(self) -> FakeClient:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda job, *more: self.asked.append((name, job, *more))


def view(state: str, since: int, *nodes: str) -> JobView:
    where = tuple(DeviceHeld(node, (0,)) for node in nodes)
    return JobView(id=7, name="ddp", state=state, since=since * US, devices=2, held=len(nodes), where=where)  # type: ignore[arg-type]


def test_every_stop_is_asked_for_once_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeClient()
    tour = demo_tour.Tour(client, 7)  # type: ignore[arg-type]
    program = demo_view.Program("ddp", "standard", "train_ddp.py", 0, 1.0, ranks=2, hash="aa")
    run = demo_view.Run(program, "ddp", Path("x"), 7, result={"hash": "aa"})
    both = ("a", "b")
    for now, seen in [
        (1, view("running", 1, *both)),  # has only just begun
        (3, view("running", 1, *both)),
        (4, view("suspending", 3, *both)),
        (6, view("running", 5, "a")),
        (7, view("running", 5, "a")),
        (9, view("running", 5, "a")),  # not there yet
        (9, view("running", 8, "b")),
        (10, view("running", 8, "b")),
        (13, view("running", 12, *both)),
        (14, view("running", 12, *both)),
        (15, view("held", 15)),
        (16, view("held", 15)),
        (18, view("running", 17, *both)),
        (30, view("running", 17, *both)),
    ]:
        client.now, run.view = now * US, seen
        tour.go_on([run])
    assert client.asked == [("scale", 7, 1), ("migrate", 7), ("scale", 7, 0), ("suspend", 7), ("resume", 7)]
    assert tour.left == [] and [stop.took_us // US for stop in tour.stops] == [2, 1, 2, 1, 1]
    assert [stop.where for stop in tour.stops] == ["a", "b", "a + b", "nowhere", "a + b"]
    demo_view.show_tour(tour, run)
    run.result = {"hash": "bb"}
    demo_view.show_tour(tour, run)
    text = capsys.readouterr().out
    assert "equal" in text and "DIFFERENT" in text
