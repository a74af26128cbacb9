"""``tide migrate``, ``tide scale``, ``tide checkpoint``, and what is shown of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tidewright.base.errors import Conflict
from tidewright.base.units import MS, SECOND
from tidewright.wire import api

from .stub import NOW, Terminal, running


def changing(tide: Terminal, *views: api.JobView) -> None:
    """The job looks like the first view, then like the next at each look."""
    left = list(views)
    known = tide.stub._known

    def job(ref: Any) -> api.JobView:
        known(ref)
        return left.pop(0) if len(left) > 1 else left[0]

    tide.stub.job = job  # type: ignore[method-assign]


def on(node: str, since: int = 10, **more: Any) -> api.JobView:
    return running(where=(api.DeviceHeld(node, (0,)),), since=NOW + since, **more)


def test_moves_are_asked_for(tide: Terminal) -> None:
    said = tide("migrate", "17", "--to", "n2", "--to", "n3")
    assert said.code == 0 and "job 17 is being moved to n2 and n3" in said.out
    assert tide("migrate", "train").out == "job 17 is being moved to other nodes\n"
    assert tide.stub.calls == [("migrate", "17", ("n2", "n3")), ("migrate", "train", ())]
    assert tide("migrate", "99").code == 3


def test_a_move_that_is_refused_says_what_to_do(tide: Terminal) -> None:
    def refuse(ref: Any, to: Any) -> api.ActionReply:
        raise Conflict("job 17 already runs on n1, all of it", "name another node")

    tide.stub.migrate = refuse  # type: ignore[method-assign]
    said = tide("migrate", "17", "--to", "n1", "--wait")
    assert said.code == 4 and said.out == "" and "already runs on n1" in said.err and "name another node" in said.err
    assert "on the nodes named already" in " ".join(tide("migrate", "--help").out.split())


@pytest.mark.parametrize("arguments", [("migrate", "17", "--wait"), ("migrate", "17", "--to", "n2", "--wait")])
def test_a_move_is_waited_for(tide: Terminal, arguments: tuple[str, ...]) -> None:
    changing(tide, on("n1", 0), on("n1", 5, state="suspending"), on("n2", 9))
    said = tide(*arguments)
    assert said.code == 0 and said.out.endswith("job 17 runs on n2[0]\n")


Case = tuple[api.JobView, int, str]


@pytest.mark.parametrize(
    "case",
    [
        (on("n1", 9, why="could not be suspended: disk full"), 4, "disk full"),
        (on("n1", 9, state="failed", why="exit code 1"), 4, "has ended meanwhile"),
    ],
)
def test_a_move_that_fails_says_why(tide: Terminal, case: Case) -> None:
    view, code, piece = case
    changing(tide, on("n1", 0), view)
    said = tide("migrate", "17", "--wait")
    assert said.code == code and piece in said.err and "tide show 17" in said.err


def test_a_wait_ends_with_its_timeout(tide: Terminal) -> None:
    changing(tide, on("n1", 0), on("n1", 5, state="suspending"))
    assert tide("migrate", "17", "--wait", "--timeout", "200ms").code == 124


def test_scaling(tide: Terminal) -> None:
    assert tide("scale", "17", "1").out == "job 17 is to run on 1 device\n"
    assert tide("scale", "17", "--reset").out == "job 17 is to run on 4 devices\n"
    assert [call[:3] for call in tide.stub.calls] == [("scale", "17", 1), ("scale", "17", 0)]
    for wrong in (["half"], ["0"], ["2", "--reset"], []):
        said = tide("scale", "17", *wrong)
        assert said.code == 2 and "tide scale 17 2" in said.err
    assert len(tide.stub.calls) == 2
    changing(tide, on("n1", 0, held=4), on("n1", 5, state="suspending", held=4), on("n1", 9, held=1))
    assert "runs on n1[0]" in tide("scale", "17", "1", "--wait").out


def test_an_image_is_asked_for(tide: Terminal) -> None:
    assert "being imaged" in tide("checkpoint", "17").out
    assert tide.stub.calls == [("checkpoint", "17")]


@pytest.fixture
def show(tide: Terminal) -> Callable[..., str]:
    """What ``tide show`` prints of a job with these changes."""

    def shown(**changes: Any) -> str:
        tide.stub.listing = (running(**changes),)
        return tide("show", "17").out

    return shown


def test_images_are_shown(show: Callable[..., str]) -> None:
    image = api.ImageView(
        serial=3,
        taken=NOW - 30 * SECOND,
        attempt=1,
        size_bytes=240 * 2**20,
        where=("n1", "n2", "*"),
        copies=("n2", "*"),
    )
    text = show(
        level="full", images=(image,), next_image=NOW + 60 * SECOND, save_us=900 * MS, hold_us=40 * MS, restore_us=300 * MS,
        between_images_us=600 * SECOND, lost_us=2 * SECOND, ranks_per_device=2.0, wanted=2,
    )  # fmt: skip
    assert "3, taken 30s ago, 240.0MiB, on n1, n2, the remote store" in text
    assert "next one in 1m00s" in text
    assert (
        "save 900ms, of that 40ms to a standstill, 0.15% of its time at one every 10m00s (0.0067% to a standstill)"
        in text
    )
    assert "restore 300ms" in text
    assert "2.0s of work, to failures" in text
    assert "4, 2 sharing each device" in text
    assert "tide scale 17 --reset" in text


def test_why_a_level_is_no_higher_is_shown(show: Callable[..., str]) -> None:
    text = show(level="freeze", level_why="it opened a raw socket")
    assert "by freeze: it opened a raw socket" in text
    assert "images" not in text


def test_the_request_for_images_is_shown(show: Callable[..., str]) -> None:
    spec = running().spec
    assert spec is not None
    assert "never by itself" in show(spec=msgspec.structs.replace(spec, checkpoint_us=-1))
    assert "every 10m" in show(spec=msgspec.structs.replace(spec, checkpoint_us=600 * SECOND))


def test_nodes_say_whether_they_take_full_images(tide: Terminal) -> None:
    (node,) = tide.stub.nodes().nodes
    for full, why, piece in ((True, "", "yes"), (False, "no CRIU; tide setup criu", "no: no CRIU; tide setup criu")):
        changed = msgspec.structs.replace(node, full=full, full_why=why, address="10.0.0.1:7000", images=4)
        tide.stub.nodes = lambda changed=changed: api.NodeList(nodes=(changed,), now=NOW)  # type: ignore[method-assign, misc]
        assert piece in tide("nodes", "-o", "wide").out


def test_nodes_say_their_level_and_their_criu(tide: Terminal) -> None:
    (node,) = tide.stub.nodes().nodes
    changed = msgspec.structs.replace(node, full=True, level="full", criu="4.1.1")
    tide.stub.nodes = lambda: api.NodeList(nodes=(changed,), now=NOW)  # type: ignore[method-assign]
    head, row = tide("nodes", "-o", "wide").out.splitlines()
    for name, text in (("LEVEL", "full"), ("CRIU", "4.1.1")):
        assert row[head.index(name) :].split()[0] == text
    assert "CRIU" not in tide("nodes").out


@pytest.mark.parametrize(("given", "us"), [("auto", 0), ("never", -1), ("10m", 600 * SECOND)])
def test_the_time_between_images_travels(tide: Terminal, given: str, us: int) -> None:
    assert tide("run", "--checkpoint-every", given, "--level", "full", "--", "true").code == 0
    (spec,) = tide.stub.submitted
    assert (spec.checkpoint_us, spec.preempt) == (us, "full")


def test_a_time_between_images_that_is_none(tide: Terminal) -> None:
    said = tide("run", "--checkpoint-every", "0s", "--", "true")
    assert said.code == 2 and "10m, auto or never" in said.err
