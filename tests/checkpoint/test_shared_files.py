"""Files that processes of others write to as well: left as they are, whatever has become of them meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.site import ENV, Site
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cgroup import wait_until
from tidewright.checkpoint.criu import driver as criu
from tidewright.checkpoint.criu import files_img
from tidewright.checkpoint.files.file_rollback import roll_back
from tidewright.checkpoint.processes import alive
from tidewright.checkpoint.protocol import Gang, RestorePlacement
from tidewright.testing.checkpoint import check_goes_on

COMMITS = """
import itertools, sqlite3, sys, time
base = sqlite3.connect(sys.argv[1], timeout=30)
base.execute("pragma synchronous=off")  # a lock held through every wait for a busy disk would leave no moment to be saved in
for number in itertools.count():
    base.execute("insert into rows values (?, ?, '')", (sys.argv[2], number))
    base.commit()
    print(number, flush=True)
    time.sleep(0.005)
"""
OTHER = """
import sqlite3, sys
base, count = sqlite3.connect(sys.argv[1], timeout=30), 0
base.execute("pragma synchronous=off")
for line in sys.stdin:
    for count in range(count, count + int(line)):
        base.execute("insert into rows values ('other', ?, ?)", (count, "x" * 500))
        base.commit()
    count += 1
    print(count, flush=True)
"""
APPENDS = """
import itertools, sys, time
file = open(sys.argv[1], "a")
for number in itertools.count():
    file.write("%d\\n" % number)
    file.flush()
    print(number, flush=True)
    time.sleep(0.005)
"""
LOCKED = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
for number in range(10**6):
    fcntl.lockf(file, fcntl.LOCK_EX)
    time.sleep(float(sys.argv[2]))
    fcntl.lockf(file, fcntl.LOCK_UN)
    print(number, flush=True)
    time.sleep(0.05)
"""


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", text, *arguments]


def of_job(number: int) -> dict[str, str]:
    return {**ENV, "TIDE_JOB_ID": str(number), "TIDE_JOB_NAME": "trials"}


class Other:
    """A process of no job that has the database open, and writes rows to it on command."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._process = subprocess.Popen(python(OTHER, str(path)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def writes(self, rows: int) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(b"%d\n" % rows)
        self._process.stdin.flush()
        self.count = int(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def other(path: Path) -> Iterator[Other]:
    made = Other(path)
    try:
        made.writes(3)
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Another process has the file open for writing."""
    with path.open("a") as file:
        process = subprocess.Popen(["sleep", "1000"], stdout=file)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def database(path: Path, mode: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute(f"pragma journal_mode={mode}")
        base.execute("create table rows (who text, number integer, text text)")
        base.commit()
    return path


def rows(path: Path, who: str) -> list[int]:
    with contextlib.closing(sqlite3.connect(path)) as base:
        assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
        return [number for (number,) in base.execute("select number from rows where who = ? order by rowid", (who,))]


def entry_of(image: Path, path: Path) -> dict[str, Any]:
    meta = json.loads((image / "meta.json").read_text())
    (found,) = (entry for entry in meta["files"] if entry["path"] == str(path))
    return dict(found)


def end(gang: Gang) -> None:
    for handle in gang.ranks:
        os.kill(handle.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(alive(handle.pid, handle.start) for handle in gang.ranks), 10)


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_no_row_of_anybody_is_lost(site: Site, tmp_path: Path, mode: str):
    path = database(tmp_path / "trials.db", mode)
    gang = site.start(command=python(COMMITS, str(path), "rank"))
    driver = site.driver("a")
    with other(path) as writer:
        for _ in range(2):
            check_goes_on(lambda: len(site.output("a")), "before the save")
            image = driver.save(gang)
            assert entry_of(Path(image.location) / "0", path)["shared"]
            before = path.stat().st_size
            writer.writes(100)
            if mode == "delete":
                assert path.stat().st_size > before
            driver.restore(image, RestorePlacement(node="a"))
            gang = site.gang_of_last(gang)
            check_goes_on(lambda: len(site.output("a")), "after the restore")
            writer.writes(3)
            driver.discard(image)
        end(gang)
        assert rows(path, "other") == list(range(writer.count))
    own = rows(path, "rank")
    assert own == list(range(len(own))) and len(own) >= len(site.output("a"))


@pytest.mark.processes
def test_jobs_suspended_alternately_lose_nothing(site: Site, tmp_path: Path):
    """Each is suspended while the other one runs, and no process but the two ever has the database open."""
    path = database(tmp_path / "trials.db", "delete")
    driver = site.driver("a")
    gangs = [
        Gang(job=job, attempt=1, world_size=1, ranks=(site.handle(site.launch("a", job, command=command), job),))
        for job in (1, 2)
        for command in [python(COMMITS, str(path), str(job))]
    ]
    for gang in gangs:
        check_goes_on(lambda job=gang.job: len(site.output("a", job)), "at first")
    images = [driver.save(gang) for gang in gangs]  # the second one is saved when the first one has ended
    for _ in range(2):
        for at, gang in enumerate(gangs):
            driver.restore(images[at], RestorePlacement(node="a"))
            gangs[at] = msgspec.structs.replace(gang, ranks=(site.handles[-1],))
            check_goes_on(lambda job=gang.job: len(site.output("a", job)), "after the restore")
            driver.discard(images[at])
            images[at] = driver.save(gangs[at])
    for job in (1, 2):
        own = rows(path, str(job))
        assert own == list(range(len(own))) and len(own) >= len(site.output("a", job)) > 3


@pytest.mark.processes
def test_what_a_rank_writes_alone_is_put_back(site: Site, tmp_path: Path):
    path = tmp_path / "own"
    gang = site.start(command=python(APPENDS, str(path)))
    driver = site.driver("a")
    check_goes_on(lambda: len(site.output("a")), "at first")
    image = driver.save(gang)
    entry = entry_of(Path(image.location) / "0", path)
    assert not entry["shared"] and entry["copy"]
    with path.open("a") as file:
        file.write("not the rank's\n")
    driver.restore(image, RestorePlacement(node="a"))
    check_goes_on(lambda: len(site.output("a")), "after the restore")
    end(site.gang_of_last(gang))
    lines = path.read_text().split()
    assert lines == [str(number) for number in range(len(lines))]


@pytest.mark.processes
def test_ranks_of_one_job_share_nothing_with_others(site: Site, tmp_path: Path):
    path = tmp_path / "own"
    gang = site.start(2, command=python(APPENDS, str(path)), env=of_job(1))
    for rank in range(2):
        check_goes_on(lambda rank=rank: len(site.output("a", rank)), "at first")
    for handles in (gang.ranks, gang.ranks[:1]):  # the second time as if the other one were on another node
        site.driver("a").dump(handles, tmp_path / "images", leave_running=True)
        assert not entry_of(tmp_path / "images" / "0", path)["shared"]
    site.launch("b", 0, command=python(APPENDS, str(path)), env=of_job(2))
    check_goes_on(lambda: len(site.output("b")), "at first")
    site.driver("a").dump(gang.ranks, tmp_path / "images", leave_running=True)
    assert all(entry_of(tmp_path / "images" / str(rank), path)["shared"] for rank in range(2))


READS = """
import time
file = open("/run/tidewright/rank/reach.json")
while True:
    print("here", flush=True)
    time.sleep(0.01)
"""


@pytest.mark.processes
def test_a_rank_may_be_reading_where_it_meets_the_others(site: Site):
    """That is written anew for each restore, and longer or shorter."""
    before, after = site.directory("a", 0), site.directory("b", 0)
    (before / "box" / "reach.json").write_text('{"port": 1}')
    (after / "box" / "reach.json").write_text('{"port": 12345, "turns": "swap"}')
    site.launch("a", at=before, command=python(READS))
    gang = Gang(job=1, attempt=1, world_size=1, ranks=(site.handles[-1],))
    check_goes_on(lambda: len(site.output("a")), "at first")
    driver = site.driver("a")
    image = Path(driver.save(gang).location) / "0"
    driver.check(image)
    site.launch("b", at=after, restore=driver.restore_spec(image))
    assert (after / "started").exists(), (after / "error").read_text()
    check_goes_on(lambda: len(site.output("b")), "after the restore")
    assert "swap" in (after / "box" / "reach.json").read_text()


@pytest.mark.processes
def test_a_shared_file_that_is_gone_is_named(site: Site, tmp_path: Path):
    path = tmp_path / "shared"
    gang = site.start(command=python(APPENDS, str(path)))
    driver = site.driver("a")
    check_goes_on(lambda: len(site.output("a")), "at first")
    with held(path):
        image = Path(driver.save(gang).location) / "0"
    path.write_text("")
    restore = driver.restore_spec(image)
    path.unlink()
    with pytest.raises(WorldError, match=f"{path} is missing, and was not the rank's alone"):
        driver.check(image)
    error = site.read(site.launch("b", restore=restore), "error")
    assert f"{path} is missing" in error["error"] and not path.exists()


@pytest.mark.processes
def test_a_rank_is_not_cut_off_within_a_transaction(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "shared"
    gang = site.start(command=python(LOCKED, str(path), "0.05"))
    check_goes_on(lambda: len(site.output("a")), "at first")
    with held(path):
        for _ in range(2):
            site.driver("a").dump(gang.ranks, tmp_path / "images", leave_running=True)
            assert not (tmp_path / "images" / "0" / "filelocks.img").exists()
        end(gang)
        monkeypatch.setattr(criu, "AGAIN_S", 0.0)
        gang = site.start(command=python(LOCKED, str(path), "1000"))
        assert wait_until(lambda: f":{path.stat().st_ino} " in Path("/proc/locks").read_text(), 10)
        with pytest.raises(WorldError, match=f"rank 0: it holds a lock on {path}"):
            site.driver("a").dump(gang.ranks, tmp_path / "images", leave_running=True)
        assert alive(gang.ranks[0].pid, gang.ranks[0].start) and not (tmp_path / "images" / "0").exists()


def test_images_of_before_have_no_shared_files(tmp_path: Path):
    path = tmp_path / "own"
    path.write_text("text and more")
    (tmp_path / "copy").write_text("text")
    now = path.stat()
    entry = {
        "path": str(path), "size": 4, "mode": 0o600, "uid": 0, "gid": 0, "mtime": 0, "copy": "copy", "links": [],
        "identity": [now.st_dev, now.st_ino], "writes": True, "mapped": False,
    }  # fmt: skip
    for shared, text in (({"shared": True}, "text and more"), ({}, "text")):
        meta = {"files": [{**entry, **shared}], "dirs": [], "box": []}
        assert roll_back(meta, str(tmp_path), dry=True) == roll_back(meta, str(tmp_path)) == []
        assert path.read_text() == text


NUMBERS = st.integers(1, 2**29 - 1)
VALUES = st.one_of(
    st.tuples(st.just(0), st.integers(0, 2**64 - 1).map(files_img.encoded)),
    st.tuples(st.just(1), st.binary(min_size=8, max_size=8)),
    st.tuples(st.just(2), st.binary(max_size=300).map(lambda value: files_img.encoded(len(value)) + value)),
    st.tuples(st.just(5), st.binary(min_size=4, max_size=4)),
)
FIELDS = st.lists(st.tuples(st.integers(1, 9) | NUMBERS, VALUES), max_size=12)


def packed(found: list[tuple[int, tuple[int, bytes]]]) -> list[tuple[int, bytes]]:
    """Numbers, and the bytes of each field."""
    return [(number, files_img.encoded(number << 3 | kind) + value) for number, (kind, value) in found]


@given(found=FIELDS, number=st.integers(1, 9))
def test_only_the_field_goes(found: list[tuple[int, tuple[int, bytes]]], number: int):
    parts = packed(found)
    message = b"".join(raw for _, raw in parts)
    assert [(each.number, each.raw) for each in files_img.fields(message)] == parts
    assert files_img.without(message, number) == b"".join(raw for each, raw in parts if each != number)


@given(found=FIELDS, cut=st.integers(0, 10**4))
def test_a_message_cut_short_is_refused_or_ends_between_fields(found: list[tuple[int, tuple[int, bytes]]], cut: int):
    parts = packed(found)
    message = b"".join(raw for _, raw in parts)
    message = message[: cut % (len(message) + 1)]
    ends = {0, *itertools.accumulate(len(raw) for _, raw in parts)}
    if len(message) in ends:
        assert files_img.without(message, 0) == message
    else:
        with pytest.raises(WorldError, match="not of a form that is known"):
            files_img.without(message, 0)


@given(message=st.binary(max_size=60))
def test_anything_else_is_read_or_refused(message: bytes):
    with contextlib.suppress(WorldError):
        assert b"".join(each.raw for each in files_img.fields(message)) == message


def listed(name: bytes, size: int) -> bytes:
    """A file_entry as CRIU writes it."""
    regular = b"\x08\x07\x10\x01" + b"\x32" + files_img.encoded(len(name)) + name + b"\x40" + files_img.encoded(size)
    entry = b"\x08\x01\x10\x07\x1a" + files_img.encoded(len(regular)) + regular
    return struct.pack("<I", len(entry)) + entry


def test_sizes_of_the_named_files_are_forgotten(tmp_path: Path):
    begin, one, two = struct.pack("<II", 0x54564319, 0x56303138), listed(b"/one", 5), listed(b"/two", 700)
    (tmp_path / "files.img").write_bytes(begin + one + two)
    files_img.forget_sizes(tmp_path, ["/two"])
    changed = (tmp_path / "files.img").read_bytes()
    assert changed.startswith(begin + one)
    (entry,) = list(files_img.messages(changed))[1:]
    assert entry == b"\x08\x01\x10\x07\x1a\x0a" + b"\x08\x07\x10\x01\x32\x04/two"
    for content, path in ((changed, "/three"), (changed[:-1], "/two"), (changed[:10], "/two"), (b"", "/two")):
        (tmp_path / "files.img").write_bytes(content)
        with pytest.raises(WorldError, match="not of a form that is known"):
            files_img.forget_sizes(tmp_path, [path])
        assert (tmp_path / "files.img").read_bytes() == content
