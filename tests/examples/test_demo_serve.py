"""The demonstration of one pool: its judgement notices what would make its claims false, and its load is what it says."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidewright.wire.api import JobView, StoryLine

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import demo_load
import demo_serve_view as view
import demo_view

SLOTS = 4
OBJECTIVE_S = 0.5


def story(
    back_s: float = 1.0, calm_ok: bool = True, most: int = SLOTS, status: int = 200, batch: bool = True
) -> view.Story:
    """A spike from second 2 to second 6, inside its objective after ``back_s``."""
    answers = [
        demo_load.Answer(at / 20, 0.1, 200 if not 40 <= at < 40 + 20 * back_s else 503, False) for at in range(8 * 20)
    ]
    answers += [demo_load.Answer(0.5, 0.1 if calm_ok else 0.6, status, False)]
    answers += [demo_load.Answer(1.0, 0.1, 200, True)] * batch
    samples = [
        view.Sample(at / 5, running, running, running, {"ddp": 3 * (running == 1)}, {"ddp": ""})
        for at, running in enumerate([1] * 15 + [most] * 10 + [1] * 15)
    ]
    return view.Story(answers, samples, 2.0, 4.0, OBJECTIVE_S)


def a_run(preemptions: int = 1, **fields: object) -> demo_view.Run:
    program = demo_view.Program("ddp", "standard", "train_ddp.py", 0, 1.0, ranks=2, hash="aa")
    lines = [
        StoryLine(at=at, what=what, why="")
        for at, what in ((1, "suspending"), (400_001, "suspended"), (9_400_001, "running"))
    ]
    job = JobView(
        id=1, name="ddp", state="completed", tier="standard", preemptions=preemptions, exit_code=0, story=tuple(lines)
    )
    return demo_view.Run(program, "ddp", Path("x"), 1, job, **{"result": {"hash": "aa", "steps": 60}, **fields})


def missed(shown: view.Story, *runs: demo_view.Run) -> list[str]:
    return [row.what for row in view.Bars.of(shown, runs or (a_run(),), SLOTS).rows if not row.kept]


def test_what_was_promised_is_kept() -> None:
    assert missed(story()) == [] and view.Bars.of(story(), [a_run()], SLOTS).kept


@pytest.mark.parametrize(
    ("shown", "run"),
    [
        (story(back_s=2.5), a_run()),
        (story(calm_ok=False), a_run()),
        (story(most=3), a_run()),
        (story(), a_run(0)),
        (story(), a_run(result={"hash": "bb"})),
        (story(), a_run(steps_lost=50)),
        (story(batch=False), a_run()),
    ],
)
def test_each_broken_promise_is_named(shown: view.Story, run: demo_view.Run) -> None:
    assert len(missed(shown, run)) == 1


def test_a_lost_request_is_no_refusal() -> None:
    assert "requests lost or failed" in missed(story(status=500))
    assert "requests lost or failed" in missed(story(status=0))
    assert "requests lost or failed" not in missed(story(status=503))


def test_when_the_spike_is_back_inside_its_objective() -> None:
    assert story(back_s=0.0).back_s() == 0.0
    assert story(back_s=1.1).back_s() == pytest.approx(1.25)  # in quarters of a second
    assert story(back_s=4.0).back_s() == float("inf")
    late = story(back_s=0.5)
    again = [replace(one, status=503) if 5.0 <= one.sent < 5.1 else one for one in late.answers]
    once_more = view.Story(again, late.samples, 2.0, 4.0, OBJECTIVE_S)
    assert once_more.back_s() == 0.5 and missed(once_more) == ["its requests after that inside"]
    assert len(missed(story(back_s=4.0))) == 2


def test_absences_in_words() -> None:
    assert view.absences(a_run()) == ["released its devices in 0.40 s, ran again 9.0 s later"]


def test_the_plot_and_the_tables_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    drawn = view.plot(story(), SLOTS).decode()
    assert drawn.count("<svg") == 1 and "objective" in drawn and "replicas" in drawn
    view.show_bars(
        view.Bars.of(story(back_s=3.0), [a_run()], SLOTS), [a_run()], demo_load.Load("h:1", "m", [(0, 1)], 0)
    )
    shown = capsys.readouterr().out
    assert "MISSED" in shown and "<= 2 s" in shown and "0.40 s" in shown


def test_the_load_sends_its_rates_and_batch_work_between() -> None:
    server: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                writer.close()
                return
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            server.append(head + await reader.readexactly(length))
            busy = len(server) % 5 == 0
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}" % (503 if busy else 200))

    async def check() -> demo_load.Load:
        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        load = demo_load.Load(f"127.0.0.1:{port}", "m", [(0.0, 20.0), (0.5, 100.0)], 1)
        load.start()
        while sum(not one.best_effort for one in load.answers) < 40:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(load.stop)
        listening.close()
        return load

    load = asyncio.run(check())
    sent = sorted(one.sent for one in load.answers if not one.best_effort)
    assert sent[1] - sent[0] == pytest.approx(0.05) and sent[-1] - sent[-2] == pytest.approx(0.01)
    assert {one.status for one in load.answers} == {200, 503}
    assert any(b"tide-class: be" in one for one in server) and any(b"tide-class" not in one for one in server)
    assert all(one.startswith(b"POST /v2/models/m/infer ") for one in server)


def test_the_model_is_one_that_can_be_served() -> None:
    from tidewright.serve.replica.model import load

    definition = load("demo_load:detector")
    assert definition.signature.max_batch == demo_load.MAX_BATCH and definition.warm_up
