"""``tide doctor`` on the state directory: modes, disk, clocks, sockets, remembered options, notifications."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from tests.command import TIDE
from tidewright.app import health
from tidewright.app.health import clocks, disk_use
from tidewright.app.health.disk_use import check_disk, kind_of
from tidewright.app.health.messages import check_notifications
from tidewright.app.health.modes import check_modes, exposure
from tidewright.app.health.options import KEPT, check_settings
from tidewright.app.health.processes import check_sockets
from tidewright.base.errors import TideError
from tidewright.base.units import HOUR
from tidewright.live.controller.clock import Base, _boot_id, _steady_us, _wall_us
from tidewright.notify.news import SeenJob
from tidewright.notify.outbox import Notification, Outbox
from tidewright.wire.socket_file import SocketFile

from .planting import locked, mended, quiet


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


def test_files_open_to_others_are_closed(state: Path) -> None:
    (state / "agent.token").write_text("secret")
    (state / "config.yaml").write_text("")
    (state / "hosts" / "east" / "logs").mkdir(parents=True, mode=0o755)
    for path in (state / "hosts", state / "hosts" / "east"):
        path.chmod(0o700)
    (state / "agent.token").chmod(0o644)
    (state / "config.yaml").chmod(0o644)
    found = check_modes(state)
    assert found.level == "bad" and "agent.token (mode 644)" in found.text and "config.yaml" not in found.text
    assert "closed 2 paths" in mended(found)
    assert check_modes(state).level == "ok" and (state / "agent.token").stat().st_mode & 0o777 == 0o600
    assert (state / "hosts" / "east" / "logs").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_write_to_is_closed_before_anything_is_believed(state: Path) -> None:
    state.chmod(0o777)
    findings, _ = health.examine(state)
    assert [one.what for one in findings] == ["state"] and "others may write" in findings[0].text
    (repair,) = health.mend(findings)
    assert repair.ok and state.stat().st_mode & 0o777 == 0o700 and exposure(state) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory to another user")
def test_a_directory_of_another_user_is_refused_in_words(state: Path) -> None:
    os.chown(state, 61235, 61235)
    (found,) = health.examine(state)[0]
    assert found.level == "bad" and "belongs to 61235" in found.text and "run tide as 61235" in found.next
    assert health.mend([found]) == []


def test_what_takes_the_disk_is_counted_by_kind(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "journal.db",
        "notify.db",
        "hosts/a/images/store/x",
        "logs/1/rank0.1.log",
        "controller.log",
        "up.json",
    ):
        path = state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 8192)
    found = check_disk(state, quiet)
    sizes = "journal 8.0KiB, images 8.0KiB, logs 16.0KiB, notifications 8.0KiB, others 8.0KiB"
    assert found.level == "ok" and sizes in found.text and "#" not in found.text
    monkeypatch.setattr(disk_use, "free_bytes", lambda path: 2**30)
    monkeypatch.setattr(disk_use, "_whole", lambda path: 100 * 2**30)
    low = check_disk(state, quiet)
    assert low.level == "note" and f"[{'#' * 30}] 99% used of 100.0GiB" in low.text and "takes 8.0KiB" in low.text
    monkeypatch.setattr(disk_use, "free_bytes", lambda path: 2**20)
    assert check_disk(state, quiet).level == "bad"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("journal.db-wal", "journal"),
        ("journal.reserve", "reserve"),
        ("hosts/a/agent.log", "logs"),
        ("hosts/a", "others"),
    ],
)
def test_a_file_has_a_kind(path: str, kind: str) -> None:
    assert kind_of(tuple(path.split("/"))) == kind


def test_many_files_show_progress(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_use, "STEP", 10)
    for number in range(25):
        (state / f"{number}").touch()
    said: list[str] = []
    check_disk(state, said.append)
    assert said == ["measuring files (0)", "measuring files (10)", "measuring files (20)"]


def test_clocks_that_are_off_are_found(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Base(_boot_id(), _steady_us(), _wall_us() - HOUR)
    (state / "clock.json").write_bytes(msgspec.json.encode(base))
    monkeypatch.setattr(clocks, "synchronized", lambda: (False, 0))
    found = {one.what: one for one in clocks.check_clocks(state)}
    assert found["clock"].level == found["ntp"].level == "note" and "behind this machine's clock" in found["clock"].text
    monkeypatch.setattr(clocks, "synchronized", lambda: (True, 1500))
    assert [one.level for one in clocks.check_clocks(state)] == ["note", "ok"]


def test_a_clock_that_cannot_be_read_is_found(state: Path) -> None:
    (state / "clock.json").write_bytes(b"{")
    found = {one.what: one for one in clocks.check_clocks(state)}
    assert found["clock"].level == "note" and "is unreadable" in found["clock"].text
    (state / "clock.json").write_bytes(msgspec.json.encode(Base("another boot", 0, 0)))
    assert "clock" not in {one.what for one in clocks.check_clocks(state)}


def test_the_kernel_says_how_far_off_its_clock_may_be() -> None:
    known = clocks.synchronized()
    assert known is None or (known[0] in (True, False) and 0 <= known[1] < 2**40)


def test_a_socket_that_is_lost_is_made_again_by_its_daemon(state: Path) -> None:
    assert check_sockets(state, 0) == [], "no daemon runs"
    file = SocketFile(state / "controller.sock")
    with locked(state / "controller.lock"):
        (lost,) = check_sockets(state, 0)
        assert lost.level == "bad" and "does not make it again" in lost.text and lost.mend is None
        later = threading.Timer(0.1, file.bind, (1,))
        later.start()
        (back,) = check_sockets(state, 30)
        later.join()
        assert back.level == "note" and "has made it again" in back.text and check_sockets(state, 0) == []


def test_what_lies_in_the_place_of_a_socket_is_moved_away(state: Path) -> None:
    path = state / "agent.sock"
    path.write_text("in the way")
    with locked(state / "agent.lock"):
        (found,) = check_sockets(state, 0)
        assert found.level == "bad" and "a file lies at" in found.text
        with pytest.raises(TideError, match="does not make its socket again"):
            mended(found)
        assert (state / "agent.sock.in-the-way-1").read_text() == "in the way" and not path.exists()
        path.mkdir()
        (found,) = check_sockets(state, 30)
        later = threading.Timer(0.1, SocketFile(path).bind, (1,))
        later.start()
        assert "agent.sock.in-the-way-2" in mended(found)
        later.join()
        assert path.is_socket()


def test_remembered_options_that_do_not_work_are_dropped_but_for_those_that_guard(state: Path) -> None:
    kept = {
        "policy": "slaa",
        "slots": "many",
        "bogus": "1",
        "tls_key": "/nowhere",
        "node_timeout": "1m",
        "jobs_as": "none",
    }
    (state / "up.json").write_text(json.dumps(kept))
    found = check_settings(state, running=False)[1:]
    wrong = {one.text.split()[1]: one for one in found}
    assert list(wrong) == ["policy", "slots", "bogus", "tls_key"]
    assert [one.level for one in found] == ["bad", "bad", "note", "bad"] and wrong["tls_key"].mend is None
    assert all(one.mend is None for one in check_settings(state, running=True))
    assert all(repair.ok for repair in health.mend(found))
    left = json.loads((state / "up.json").read_text())
    assert left == {"tls_key": "/nowhere", "node_timeout": "1m", "jobs_as": "none"}
    assert json.loads((state / KEPT).read_text()) == kept


def test_options_that_do_not_go_together_are_found(state: Path) -> None:
    (state / "up.json").write_text('{"listen": "127.0.0.1:1", "tls_cert": "/dev/null"}')
    (found,) = check_settings(state, running=False)[1:]
    assert found.level == "bad" and "remembered options do not work" in found.text and found.mend is None


def test_unreadable_options_are_moved_away(state: Path) -> None:
    (state / "up.json").write_text("{")
    (state / "agents.json").write_text(
        '{"hosts": [{"name": "east", "cores": [4095]}], "sockets": ["/nowhere/agent.sock"]}'
    )
    options, cores, agent = check_settings(state, running=False)
    assert options.level == cores.level == "bad" and "[4095]" in cores.text and "no agent answers" in agent.text
    assert "up.json.unreadable-1" in mended(options)
    assert check_settings(state, running=False)[0].level == "ok"


def _message(number: int, channel: str, target: str) -> Notification:
    return Notification(
        id=f"m{number}", job=1, kind="end", channel=channel, target=target, site=target, subject="s", body="b",
        created=number, due=number,
    )  # fmt: skip


def test_notifications_that_fail_are_named_by_host(state: Path) -> None:
    assert check_notifications(state, running=True) == []
    outbox, url = Outbox(state), "https://me:pw@hooks.example:8443/services/SECRET"
    messages = [_message(1, "webhook", url), _message(2, "webhook", url), _message(3, "mail", "ann@mail.example")]
    outbox.note(SeenJob(job=1, group="", state="running"), messages, 5)
    assert check_notifications(state, running=False)[0].level == "ok"
    outbox.tried(messages[0], "given up", f"OSError: {url} refused", 5)
    outbox.tried(messages[1], "", f"OSError: {url} timed out", 5)
    outbox.tried(messages[2], "sent", "", 5)
    (found,) = check_notifications(state, running=False)
    assert found.level == "note" and "webhook to hooks.example:8443: 1 tried again, 1 given up" in found.text
    assert "OSError: hooks.example:8443 timed out" in found.text and "SECRET" not in found.text
    stuck = check_notifications(state, running=True)[0]
    assert stuck.level == "bad" and "no process sends them" in stuck.text
    with locked(state / "notify.lock"):
        assert [one.level for one in check_notifications(state, running=True)] == ["note"]
    outbox.close()
    (state / "notify.db").write_bytes(b"no database" * 1000)
    assert "is not looked at" in check_notifications(state, running=True)[0].text


NO_PRIVILEGE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
"""Root may read what no mode lets it, by a capability."""


@pytest.mark.processes
@pytest.mark.parametrize("mode", [0o000, 0o300, 0o400])
def test_a_directory_that_may_not_be_read_is_a_finding(state: Path, mode: int) -> None:
    state.chmod(mode)
    try:
        found = subprocess.run([*NO_PRIVILEGE, *TIDE, "--state", state, "doctor"], capture_output=True, text=True)
        up = subprocess.run([*NO_PRIVILEGE, *TIDE, "--state", state, "up"], capture_output=True, text=True)
    finally:
        state.chmod(0o700)
    assert found.returncode == 1 and f"BAD   state: {state} cannot be looked at: Permission denied" in found.stdout
    assert f"chmod u+rwx {state}" in found.stdout and not found.stderr
    assert up.returncode == 2 and "Permission denied" in up.stderr and "in a moment" not in up.stderr


def test_a_path_that_leads_nowhere_is_a_finding(tmp_path: Path) -> None:
    loop, file = tmp_path / "loop", tmp_path / "file"
    loop.symlink_to("loop")
    file.touch()
    for path, why in ((loop, "Too many levels"), (file, "Not a directory"), (file / "below", "Not a directory")):
        (finding,), _ = health.examine(path)
        assert finding.level == "bad" and why in finding.text
