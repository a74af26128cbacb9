"""Files that commands write at their end: what is refused before the work, and what is there when the disk refuses."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.small_disk import small_disk_at
from tidewright.app.compare import save
from tidewright.app.compare.worker import RunResult, simulate_cell
from tidewright.app.output_file import check_output, write_output
from tidewright.app.simulate import Question
from tidewright.base.errors import UsageError
from tidewright.cli.shell import tide

Write = Callable[[Path], None]
WRITES: tuple[Write, ...] = (
    lambda path: check_output(path, "--report"),
    lambda path: write_output(path, b"page", "--report"),
)


def refusal(write: Write, path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        write(path)
    assert str(path) in caught.value.message and "--report" in caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize("write", WRITES, ids=["check", "write"])
def test_places_where_nothing_can_be_written(write: Write, tmp_path: Path) -> None:
    assert f"mkdir -p {tmp_path / 'a'}" in refusal(write, tmp_path / "a" / "page.html")
    assert "it is a directory" in refusal(write, tmp_path)
    (tmp_path / "file").write_text("x")
    assert "there is no directory" in refusal(write, tmp_path / "file" / "page.html")
    assert "No such file" in refusal(write, Path("/proc/page.html"))
    assert "too long" in refusal(write, tmp_path / ("n" * 300))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("write", WRITES, ids=["check", "write"])
def test_places_where_nobody_may_write(write: Write, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        assert "where you may create files" in refusal(write, Path("/sys/page.html"))
        return
    kept = tmp_path / "kept.html"
    kept.write_text("old")
    kept.chmod(0o444)
    assert "where you may create files" in refusal(write, kept) and kept.read_text() == "old"
    tmp_path.chmod(0o555)
    assert "where you may create files" in refusal(write, tmp_path / "new.html")
    tmp_path.chmod(0o755)


def test_a_check_leaves_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    check_output(path, "--report")
    assert not list(tmp_path.iterdir())
    path.write_text("old")
    check_output(path, "--report")
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_file_keeps_its_mode_and_a_link_its_place(tmp_path: Path) -> None:
    path, link = tmp_path / "page.html", tmp_path / "link.html"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path.name)
    write_output(link, b"new", "--report")
    assert path.read_bytes() == b"new" and link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    umask = os.umask(0o027)
    try:
        write_output(tmp_path / "other.html", b"", "--report")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "other.html").stat().st_mode) == 0o640


def test_pipes_and_devices_are_written_to_as_they_are(tmp_path: Path) -> None:
    before = Path("/dev/null").stat().st_ino
    check_output(Path("/dev/null"), "--report")
    write_output(Path("/dev/null"), b"x", "--report")
    assert Path("/dev/null").stat().st_ino == before
    program = (
        "from pathlib import Path; from tidewright.app.output_file import check_output, write_output\n"
        "check_output(Path('/dev/stdout'), '--report'); write_output(Path('/dev/stdout'), b'page', '--report'); print('after')"
    )
    for sink in (subprocess.PIPE, (tmp_path / "all").open("w+b")):
        ran = subprocess.run([sys.executable, "-c", program], stdout=sink, check=True)
        found = ran.stdout if sink == subprocess.PIPE else (tmp_path / "all").read_bytes()
        assert found.endswith(b"after\n") and (b"page" in found or sink != subprocess.PIPE)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EPERM, errno.EACCES])
def test_a_file_that_cannot_be_replaced_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A mount point, or another's directory in which the file is the user's own."""

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "page.html"
    path.write_text("a longer old one")
    if number == errno.EACCES:
        original = os.open

        def opened(name: str | Path, flags: int, *more: int) -> int:
            return refused() if flags & os.O_CREAT else original(name, flags, *more)  # type: ignore[return-value]

        monkeypatch.setattr("os.open", opened)
    else:
        monkeypatch.setattr("os.replace", refused)
    check_output(path, "--report")
    assert path.read_text() == "a longer old one"
    write_output(path, b"new", "--report")
    monkeypatch.undo()
    assert path.read_bytes() == b"new" and [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_full_disk_leaves_the_old_file_and_no_part_of_the_new_one(tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "small", 2) as small:
        path = small / "page.html"
        path.write_text("old")
        check_output(path, "--report")
        big = bytes(3 << 20)
        assert "free some space there" in refusal(lambda place: write_output(place, big, "--report"), path)
        (small / "filler").write_bytes(bytes(3 << 19))
        assert "free some space there" in refusal(lambda place: check_output(place, "--report"), path)
        assert path.read_text() == "old" and sorted(entry.name for entry in small.iterdir()) == ["filler", "page.html"]


def cell(seed: int) -> tuple[Question, RunResult]:
    question = Question(trace="synthetic:jobs=20,max=1h", cluster="2x4", policy="fifo", seed=seed)
    return question, simulate_cell(question)


def test_a_saved_result_that_the_disk_refuses_leaves_no_part(tmp_path: Path) -> None:
    with small_disk_at(tmp_path / "small", 1) as small, save.SaveFolder(small / "cells") as folder:
        question, found = cell(1)
        folder.add(save.key_of(question), question, found)
        whole = (small / "cells" / save.CELLS).read_bytes()
        room = os.statvfs(small)
        (small / "filler").write_bytes(bytes(room.f_bavail * room.f_bsize))
        with pytest.raises(UsageError, match=save.CELLS):
            for _ in range(3):
                folder.add(save.key_of(question), question, found)
                whole += whole
        folder_file = (small / "cells" / save.CELLS).read_bytes()
        assert folder_file.endswith(b"\n") and folder_file.startswith(whole[:100])
        with pytest.raises(UsageError, match="No space left"):
            save.check_save(small / "cells")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("simulate", "-t", "nowhere.csv", "--report"), "--report"),
        (("simulate", "-t", "nowhere.csv", "--jobs-out"), "--jobs-out"),
        (("compare", "-t", "nowhere.csv", "--html"), "--html"),
        (("compare", "-t", "nowhere.csv", "--save"), "--save"),
        (("replay", "nowhere.db", "--report"), "--report"),
        (("replay", "nowhere.db", "--jobs-out"), "--jobs-out"),
        (("pack", "openb:nowhere", "--report"), "--report"),
        (("bench", "disb", "-w", "nonesuch", "--report"), "--report"),
    ],
)
def test_every_command_looks_before_its_work(words: tuple[str, ...], option: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no page with plots")
    file = tmp_path / "file"
    file.write_text("x")
    error = CliRunner().invoke(tide, [*words, str(file / "out")]).exception
    assert isinstance(error, UsageError) and str(file / "out") in error.message and "nowhere" not in error.message
    assert option in error.remedy


def test_one_file_is_not_two(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no page with plots")
    words = ("simulate", "-t", "nowhere.csv", "--report", str(tmp_path / "x"), "--jobs-out", str(tmp_path / "." / "x"))
    assert "name one file" in str(CliRunner().invoke(tide, words).exception)


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "-t", "read.csv", "--jobs-out"),
        ("simulate", "-t", "csv:read.csv", "--report"),
        ("simulate", "-t", "gavel:jobs.tsv,throughputs=read.csv", "--jobs-out"),
        ("simulate", "-t", "philly:10", "-c", "./read.csv", "--jobs-out"),
        ("simulate", "-t", "philly:10", "--rates", "read.csv", "--jobs-out"),
        ("simulate", "-t", "philly:10", "--profile", "read.csv", "--jobs-out"),
        ("simulate", "-t", "philly:10", "--costs", "learn:read.csv", "--jobs-out"),
        ("replay", "read.csv", "--jobs-out"),
        ("replay", "read.csv", "--report"),
        ("compare", "-t", "philly:10", "-t", "read.csv", "--html"),
        ("compare", "-t", "philly:10", "--costs", "learn:read.csv", "--html"),
        ("pack", "openb:folder,pods=read.csv", "--report"),
    ],
)
@pytest.mark.parametrize("written", ["read.csv", "link.csv"])
def test_what_is_read_is_not_replaced(
    words: tuple[str, ...], written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no page with plots")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "read.csv").write_text("submit,duration,devices\n0,10,1\n")
    (tmp_path / "link.csv").symlink_to("read.csv")
    error = CliRunner().invoke(tide, [*words, written]).exception
    assert isinstance(error, UsageError) and f"{words[-1]} {written} is the file that" in error.message
    assert error.remedy == f"give another {words[-1]}"
    assert (tmp_path / "read.csv").read_text() == "submit,duration,devices\n0,10,1\n"


def test_the_journal_of_a_state_directory_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"x")
    words = ("replay", str(tmp_path), "--jobs-out", str(tmp_path / "journal.db"))
    assert "is the file that" in str(CliRunner().invoke(tide, words).exception)


def test_the_log_of_a_journal_is_not_replaced(tmp_path: Path) -> None:
    for name in ("journal.db", "journal.db-wal"):
        (tmp_path / name).write_bytes(b"x")
    for read in (tmp_path, tmp_path / "journal.db"):
        words = ("replay", str(read), "--jobs-out", str(tmp_path / "journal.db-wal"))
        assert "is the file that" in str(CliRunner().invoke(tide, words).exception)


@pytest.mark.parametrize(
    "name", ["openb_node_list_gpu_node.csv", "openb_pod_list_default.csv.gz", "arrival_order_default_seeds1-2.txt"]
)
def test_no_file_of_a_filling_trace_is_replaced(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: no page with plots")
    for one in ("openb_node_list_gpu_node.csv", "openb_pod_list_default.csv.gz", "arrival_order_default_seeds1-2.txt"):
        (tmp_path / one).write_text("x")
    words = ("pack", f"openb:{tmp_path}", "--report", str(tmp_path / name))
    error = CliRunner().invoke(tide, words).exception
    assert isinstance(error, UsageError) and f"is the file that openb:{tmp_path} is read from" in error.message
    assert (tmp_path / name).read_text() == "x"


def test_a_saved_result_counts_for_what_a_journal_holds_not_only_its_database(tmp_path: Path) -> None:
    writer = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE turns (body BLOB)")
    asked = Question(trace="philly:10", cluster="1x8", policy="fifo")
    costs = [f"learn:{path}" for path in (tmp_path, tmp_path / "journal.db")]
    questions = [msgspec.structs.replace(asked, costs=text) for text in costs]
    before, database = [save.key_of(one) for one in questions], (tmp_path / "journal.db").read_bytes()
    writer.execute("INSERT INTO turns VALUES ('one more')")
    assert (tmp_path / "journal.db").read_bytes() == database, "it is in the log"
    assert all(save.key_of(one) != key for one, key in zip(questions, before, strict=True))
    writer.close()
    emptied = [save.key_of(one) for one in questions]
    (tmp_path / "journal.db-wal").write_bytes(b"")
    assert [save.key_of(one) for one in questions] == emptied
