"""State directories that others can tamper with, tried by real other users of the kernel's."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.sizes import matrix
from tidewright.agent.layout import AgentLayout
from tidewright.app import health
from tidewright.app.settings import load_settings
from tidewright.app.start import controller_pid, start_detached
from tidewright.base.atomic import write_atomically as agent_write
from tidewright.base.errors import Unreachable, UsageError
from tidewright.live.api.auth import load_token
from tidewright.live.controller.lock import StateLock, write_whole
from tidewright.live.journal.store import Journal
from tidewright.wire.client import Client
from tidewright.wire.state_files import make_private, open_own, tampering
from tidewright.wire.trust import refuse_stranger

VICTIM, ATTACKER = 61235, 61234
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two other users")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory like /tmp: everybody may write, and keeps what is theirs."""
    path = Path(tempfile.mkdtemp(prefix="tide-shared-", dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def as_user(uid: int, work: Callable[[], object]) -> str:
    """What ``work`` returns, or the error it raises, as text; done by another user in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.umask(0o022)
            said = str(work())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode()[:4000])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text


def begin(state: Path) -> str:
    """The victim starts a controller's and an agent's files there."""

    def work() -> str:
        lock = StateLock(state)
        Journal(state).close()
        load_token(state)
        AgentLayout(state).prepare()
        lock.release()
        return "begun"

    return as_user(VICTIM, work)


def made(uid: int, path: Path, mode: int = 0o755) -> None:
    def work() -> None:
        path.mkdir()
        path.chmod(mode)

    assert as_user(uid, work) == "None"


def test_a_directory_of_ones_own_in_tmp_is_fine(shared: Path) -> None:
    assert begin(shared / "state") == "begun"
    assert (shared / "state").stat().st_mode & 0o777 == 0o700
    assert begin(shared / "state") == "begun"


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_directory_of_somebody_else_is_refused(shared: Path, mode: int) -> None:
    made(ATTACKER, shared / "state", mode)
    said = begin(shared / "state")
    assert said.startswith("UsageError") and f"belongs to {ATTACKER}" in said


def test_a_directory_below_one_of_somebody_else_is_refused(shared: Path) -> None:
    made(ATTACKER, shared / "hers", 0o777)
    assert f"belongs to {ATTACKER}" in begin(shared / "hers" / "state")
    assert not (shared / "hers" / "state").exists()


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(shared: Path, mode: int) -> None:
    made(VICTIM, shared / "state", mode)
    assert "may write to the state directory" in begin(shared / "state")


def test_what_others_may_write_to_on_the_way_is_refused(shared: Path) -> None:
    made(VICTIM, shared / "open", 0o777)
    assert "may write to" in begin(shared / "open" / "state")
    os.chmod(shared / "open", 0o770)
    assert begin(shared / "open" / "state") == "begun", "one's own group is oneself"
    os.chown(shared / "open", VICTIM, 4)
    assert "the group adm may write" in begin(shared / "open" / "state")


def test_a_link_of_somebody_else_is_refused_and_ones_own_is_not(shared: Path) -> None:
    made(VICTIM, shared / "real", 0o700)
    as_user(ATTACKER, lambda: (shared / "hers").symlink_to(shared / "real"))
    as_user(VICTIM, lambda: (shared / "own").symlink_to(shared / "real"))
    assert f"the link {shared / 'hers'} belongs to {ATTACKER}" in begin(shared / "hers")
    assert begin(shared / "own") == "begun"
    as_user(VICTIM, lambda: (shared / "loop").symlink_to(shared / "loop"))
    assert "too many links" in begin(shared / "loop")


FILES = [
    "controller.lock",
    "controller.pid.part",
    "epoch",
    "epoch.part",
    "journal.db",
    "journal.db-wal",
    "journal.mark",
    "token",
]


KINDS = ("link of hers", "link of his own", "second name")
NUMBERED = product(enumerate((*FILES, "agent.lock")), enumerate(KINDS))


@pytest.mark.parametrize(
    ("name", "kind"), matrix(((name, kind), (row + column) % 2 == 0) for (row, name), (column, kind) in NUMBERED)
)
def test_what_lies_in_the_place_of_a_file_is_not_written_through(shared: Path, name: str, kind: str) -> None:
    """A directory that once was open to all, and was closed later."""
    precious = shared / "precious"
    as_user(VICTIM, lambda: precious.write_text("1234567\n"))
    made(VICTIM, shared / "state", 0o777)
    if kind == "second name":
        os.link(precious, shared / "state" / name)
    else:
        as_user(ATTACKER if kind == "link of hers" else VICTIM, lambda: (shared / "state" / name).symlink_to(precious))
    os.chmod(shared / "state", 0o700)
    said = begin(shared / "state")
    assert precious.read_text() == "1234567\n"
    if kind == "link of hers":
        assert f"belongs to {ATTACKER}" in said
    elif not name.endswith(".part") and name != "agent.lock":
        assert said.startswith("UsageError"), said


def test_settings_of_others_are_not_obeyed(shared: Path) -> None:
    made(VICTIM, shared / "state", 0o700)
    config = shared / "state" / "config.yaml"
    config.write_text("policy: fifo\n")
    os.chown(config, ATTACKER, ATTACKER)
    os.chmod(config, 0o644)
    assert "can be changed by others" in as_user(VICTIM, lambda: load_settings(shared / "state"))
    os.chown(config, VICTIM, VICTIM)
    assert "fifo" in as_user(VICTIM, lambda: load_settings(shared / "state"))
    os.chmod(config, 0o666)
    assert "can be changed by others" in as_user(VICTIM, lambda: load_settings(shared / "state"))


def test_a_planted_pid_is_not_acted_on(shared: Path) -> None:
    """``tide down`` ends a process by the lock file: not by one of somebody else's."""
    made(ATTACKER, shared / "state")

    def plant() -> None:
        (shared / "state" / "controller.lock").write_text("1 1\n")
        (shared / "state" / "controller.pid").write_text("1\n")

    as_user(ATTACKER, plant)
    for uid in (VICTIM, 0):
        assert as_user(uid, lambda: controller_pid(shared / "state")).startswith("UsageError")
        assert as_user(uid, lambda: start_detached(shared / "state", ["true"])).startswith("UsageError")


def test_root_does_not_work_in_a_users_directory(shared: Path) -> None:
    made(VICTIM, shared / "state", 0o700)
    assert f"belongs to {VICTIM}, and this is root" in str(tampering(shared / "state"))
    with pytest.raises(UsageError, match="run tide as"):
        make_private(shared / "state")


def test_doctor_names_the_owner(shared: Path) -> None:
    made(ATTACKER, shared / "state", 0o755)
    said = as_user(VICTIM, lambda: health.examine(shared / "state")[0])
    assert f"belongs to {ATTACKER}" in said and "bad" in said


def test_a_clients_secrets_are_not_sent_to_a_stranger(shared: Path) -> None:
    """Somebody listens where the victim's controller would: environments would be submitted to it."""
    with socket.socket(socket.AF_UNIX) as listener:
        made(ATTACKER, shared / "state")
        held, holding = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setresuid(ATTACKER, ATTACKER, ATTACKER)
                listener.bind(str(shared / "state" / "controller.sock"))
                os.chmod(shared / "state" / "controller.sock", 0o666)
                listener.listen()
                os.write(holding, b".")
                connection, _ = listener.accept()
                os.write(holding, connection.recv(1000) or b"nothing")
            finally:
                os._exit(0)
        assert os.read(held, 1) == b"."
        for uid in (VICTIM, 0):
            said = as_user(uid, lambda: Client(shared / "state", timeout=5).info())
            assert said.startswith("UsageError") and f"another user ({ATTACKER})" in said
            if uid == VICTIM:
                assert os.read(held, 100) == b"nothing"
        os.waitpid(pid, 0)


def test_a_controllers_socket_is_closed_to_others(shared: Path) -> None:
    assert as_user(ATTACKER, lambda: Client(shared, timeout=5).info()).startswith(Unreachable.__name__)
    made(VICTIM, shared / "state")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shared / "state" / "controller.sock"))
        (shared / "state" / "controller.sock").chmod(0o600)
        listener.listen()
        said = as_user(ATTACKER, lambda: Client(shared / "state", timeout=5).info())
        assert said.startswith(f"NotAllowed: {shared}/state belongs to {VICTIM}, and {ATTACKER} may not connect")
        assert f"run tide as {VICTIM}" in said, "not: start it with tide up"
        (shared / "state").chmod(0o700)
        assert as_user(ATTACKER, lambda: Client(shared / "state").info()) == said
        (shared / "state" / "controller.sock").chmod(0)
        said = as_user(VICTIM, lambda: Client(shared / "state").info())
        assert said.startswith("NotAllowed: the modes of") and f"chmod u+rw {shared}/state/controller.sock" in said
        (shared / "inner").mkdir(0o700)
        said = as_user(ATTACKER, lambda: Client(shared / "inner" / "state").info())
        assert said.startswith(
            f"NotAllowed: {ATTACKER} may not look into {shared}/inner/state, or into a directory above"
        )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        refuse_stranger(ours, shared)


def test_what_vanishes_while_it_is_looked_at_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket of a controller that ends, say, when tide down looks."""
    real = os.scandir

    @contextlib.contextmanager
    def scandir(place: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(place) as entries:
            listed = list(entries)
        for entry in listed:
            os.unlink(entry.path)
        yield iter(listed)

    (tmp_path / "controller.sock").touch()
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "scandir", scandir)
    assert tampering(tmp_path) is None


def test_drafts_replace_links(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    for name in ("file.part", ".file.new"):
        (tmp_path / name).symlink_to(precious)
    write_whole(tmp_path / "file", "new")
    agent_write(tmp_path / "file", b"newer")
    assert precious.read_text() == "x" and (tmp_path / "file").read_text() == "newer"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        open_own(tmp_path / "pipe", os.O_RDONLY)
