"""``tide images`` over real stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.stub import Terminal
from tidewright.checkpoint.store import ImageName, ImageStore
from tidewright.cli.session import Session
from tidewright.cli.shell import run


@pytest.fixture
def stores(tmp_path: Path) -> list[ImageStore]:
    """Two stores of a state directory: its own agent's, and that of a host."""
    made = []
    for number, folder in enumerate(("images/store", "hosts/east/images/store")):
        source = tmp_path / f"in{number}"
        source.mkdir()
        (source / "pages-1.img").write_bytes(bytes(range(256)) * 160)
        (root := tmp_path / "state" / folder).parent.mkdir(parents=True)
        store = ImageStore(root)
        store.put(ImageName("vision", 17 + number, 3, 0), source)
        made.append(store)
    return made


@pytest.fixture
def at(tide: Terminal, tmp_path: Path) -> Terminal:
    tide.state = tmp_path / "state"
    return tide


def test_ls(at: Terminal, stores: list[ImageStore]) -> None:
    listed = at("images", "ls", "-o", "wide")
    lines = listed.out.splitlines()
    assert listed.code == 0 and lines[0].split() == [
        "JOB", "SERIAL", "RANK", "NODE", "TENANT", "SIZE", "NEW", "STORED", "MADE", "NOTE",
    ]  # fmt: skip
    assert lines[1].split()[:6] == ["17", "3", "0", "-", "vision", "40.0KiB"]
    assert lines[2].split()[:4] == ["18", "3", "0", "east"]
    assert "2 images; the stores take" in listed.err
    reply = json.loads(at("images", "ls", "-o", "json").out)
    assert reply["schema"] == "tidewright/v2" and [one["job"] for one in reply["images"]] == [17, 18]
    assert at("images", "ls", "18", "-o", "name").out == "18.3.0\n"
    missing = at("images", "ls", "99")
    assert missing.code == 3 and "no image of job 99" in missing.err


def test_without_any_store(at: Terminal, tmp_path: Path) -> None:
    assert at("images", "ls").code == 0
    assert at("images", "verify").code == 0
    assert at("images", "gc").out.startswith("freed 0B")
    assert not (tmp_path / "state").exists(), "looking makes nothing"


def test_gc(at: Terminal, stores: list[ImageStore]) -> None:
    stores[1].drop(ImageName("vision", 18, 3, 0))
    assert json.loads(at("images", "gc", "-o", "json").out)["packs"] == 1
    assert at("images", "gc").out == "freed 0B (0 packs, 0 leftovers)\n"


def test_verify(at: Terminal, stores: list[ImageStore]) -> None:
    sound = at("images", "verify")
    assert (sound.code, sound.out, sound.err) == (0, "", "2 images, all sound\n")
    pack = next(stores[1].root.rglob("*.pack"))
    data = bytearray(pack.read_bytes())
    data[20] ^= 1
    pack.write_bytes(data)
    found = at("images", "verify")
    assert found.code == 1 and "18.3.0" in found.out and "changed bytes" in found.out
    assert "2 images, 1 of them damaged" in found.err
    assert at("images", "verify", "17").code == 0
    reply = json.loads(at("images", "verify", "18", "-o", "json").out)
    assert reply["images"] == 1 and reply["findings"][0]["images"] == ["18.3.0"]


def test_only_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["images", "ls"], Session(tmp_path, "http://127.0.0.1:1")) == 2
    assert "leave out --url" in capsys.readouterr().err
