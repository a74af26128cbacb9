"""Copies elsewhere: directories, memory, a peer's store, and S3."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

from tests.ports import free_port
from tidewright.base.errors import UsageError, WorldError
from tidewright.checkpoint.store import FsspecRemote, ImageDamaged, ImageMissing, ImageStore, Remote
from tidewright.checkpoint.store.disk import scratch

from .builders import image, name, read

SECRET = b"of the cluster"


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The endpoint of an S3 server on this machine, without a bucket."""
    port = free_port()
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def s3_remote(endpoint: str, bucket: str = "images", **more: object) -> FsspecRemote:
    options = {
        "key": "user",
        "secret": "secret",
        "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"},
    }
    return FsspecRemote(f"s3://{bucket}/site", **{**options, **more})


MakeRemote = Callable[[], Remote]


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.processes)])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> MakeRemote:
    """Opens the same empty remote store again and again."""
    if request.param == "file":
        return lambda: FsspecRemote(f"file://{tmp_path}/remote")
    if request.param == "memory":
        url = f"memory://{uuid4().hex}"
        return lambda: FsspecRemote(url)
    endpoint, bucket = request.getfixturevalue("s3"), uuid4().hex
    urlopen(Request(f"{endpoint}/{bucket}", method="PUT")).close()
    return lambda: s3_remote(endpoint, bucket)


class Counting:
    """A remote that counts what passes, and fails at the ``fail``-th write."""

    def __init__(self, remote: Remote, fail: int = 0) -> None:
        self._remote, self._fail = remote, fail
        self.writes: list[str] = []
        self.reads: list[str] = []

    def has(self, keys: list[str]) -> set[str]:
        return self._remote.has(keys)

    def list(self, prefix: str) -> list[str]:
        return self._remote.list(prefix)

    def read(self, key: str) -> bytes:
        self.reads.append(key)
        return self._remote.read(key)

    def write(self, key: str, data: bytes) -> None:
        self.writes.append(key)
        if len(self.writes) == self._fail:
            raise WorldError("the line is dead")
        self._remote.write(key, data)


@pytest.mark.usefixtures("small_packs")
def test_only_what_is_missing_travels(elsewhere: MakeRemote, tmp_path: Path) -> None:
    here, there = ImageStore(tmp_path / "here", secret=SECRET), ImageStore(tmp_path / "there", secret=SECRET)
    for serial, pages in ((1, range(1, 300)), (2, range(10, 310))):
        here.put(name(serial), image(tmp_path / str(serial), pages), meta={"serial": serial})
    first = here.push(name(1), elsewhere())
    second = here.push(name(2), elsewhere())
    assert second.bytes < 0.2 * first.bytes < first.image_bytes
    assert here.push(name(2), elsewhere()).objects == 0
    counting = Counting(elsewhere())
    assert there.pull(name(1), counting).bytes > 400_000
    again = Counting(elsewhere())
    assert there.pull(name(2), again).bytes < 0.2 * first.bytes
    assert not set(counting.reads) & set(again.reads) and again.reads
    for serial in (1, 2):
        there.get(name(serial), tmp_path / f"out{serial}")
        assert read(tmp_path / f"out{serial}") == read(tmp_path / str(serial))
        assert there.meta(name(serial)) == {"serial": serial}
    with pytest.raises(ImageMissing):
        there.pull(name(3), elsewhere())


@pytest.mark.usefixtures("small_packs")
def test_packs_written_anew_do_not_travel_again(tmp_path: Path) -> None:
    here, remote = ImageStore(tmp_path / "here"), FsspecRemote(f"file://{tmp_path}/remote")
    here.put(name(1), image(tmp_path / "1", range(1, 400)))
    here.push(name(1), remote)
    here.put(name(2), image(tmp_path / "2", random.Random(0).sample(range(1, 400), 90)))
    here.drop(name(1))
    assert here.gc().packs > 0
    counting = Counting(remote)
    here.push(name(2), counting)
    assert [key for key in counting.writes if key.endswith(".pack")] == [
        key for key in counting.writes if "/packs/" in key
    ][:0]


@pytest.mark.usefixtures("small_packs")
def test_an_interrupted_push_shows_nothing_and_goes_on(tmp_path: Path) -> None:
    here = ImageStore(tmp_path / "here")
    here.put(name(), image(tmp_path / "in", range(1, 300)))
    complete = Counting(FsspecRemote(f"file://{tmp_path}/complete"))
    here.push(name(), complete)
    assert complete.writes[-1] == name().key and len(complete.writes) > 6
    url = f"file://{tmp_path}/remote"
    for at in range(1, len(complete.writes) + 1):
        with pytest.raises(WorldError, match="the line is dead"):
            here.push(name(), Counting(FsspecRemote(f"{url}{at}"), fail=at))
        assert FsspecRemote(f"{url}{at}").has([name().key]) == set()
        with pytest.raises(ImageMissing):
            ImageStore(tmp_path / f"no{at}").pull(name(), FsspecRemote(f"{url}{at}"))
        rest = Counting(FsspecRemote(f"{url}{at}"))
        here.push(name(), rest)
        assert len(rest.writes) <= len(complete.writes) - at + 2, "what had arrived stays"
        there = ImageStore(tmp_path / f"there{at}")
        there.pull(name(), FsspecRemote(f"{url}{at}"))
        there.get(name(), tmp_path / f"out{at}")
        assert read(tmp_path / f"out{at}") == read(tmp_path / "in")


@pytest.mark.parametrize("common", [True, False])
def test_a_peer_is_a_remote(tmp_path: Path, common: bool) -> None:
    here = ImageStore(tmp_path / "here", secret=SECRET if common else b"")
    there = ImageStore(tmp_path / "there", secret=SECRET if common else b"")
    here.put(name(1), image(tmp_path / "1", range(1, 100)), meta={"a": [1]})
    there.put(name(8), image(tmp_path / "8", range(1, 90)))
    counting = Counting(here.objects)
    there.pull(name(1), counting)
    there.pull(name(1), counting)
    there.get(name(1), tmp_path / "out")
    assert read(tmp_path / "out") == read(tmp_path / "1") and there.meta(name(1)) == {"a": [1]}
    assert there.verify() == [] and there.gc().leftovers == 0
    with pytest.raises(WorldError, match="its own node only"):
        there.push(name(8), here.objects)


def test_scratch_of_the_dead_is_removed_and_that_of_the_living_kept(store: ImageStore) -> None:
    drafts = store.root / "tmp"
    (drafts / "dead").mkdir()
    (drafts / "dead" / "pages").write_bytes(b"x" * 1000)
    with scratch(drafts) as alive:
        freed = store.gc()
        assert (freed.leftovers, freed.bytes) == (1, 1000)
        assert alive.exists() and not (drafts / "dead").exists()
    assert not alive.exists()


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.usefixtures("small_packs")
def test_nothing_damaged_is_pulled(tmp_path: Path, seed: int) -> None:
    here, rng = ImageStore(tmp_path / "here"), random.Random(seed)
    here.put(name(), image(tmp_path / "in", range(1, 200)))
    here.push(name(), FsspecRemote(f"file://{tmp_path}/remote"))
    path = rng.choice(sorted(path for path in (tmp_path / "remote").rglob("*") if path.is_file()))
    data = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    else:
        del data[rng.randrange(len(data)) :]
    path.write_bytes(data)
    there = ImageStore(tmp_path / "there")
    with pytest.raises(WorldError) as caught:
        there.pull(name(), FsspecRemote(f"file://{tmp_path}/remote"))
    assert "damaged" in str(caught.value) or "key of tenant" in str(caught.value)
    assert not there.has(name())


@pytest.mark.usefixtures("small_packs")
def test_a_damaged_image_is_mended_by_a_pull(tmp_path: Path) -> None:
    here, remote = ImageStore(tmp_path / "here"), FsspecRemote(f"file://{tmp_path}/remote")
    here.put(name(), image(tmp_path / "in", range(1, 200)))
    here.push(name(), remote)
    packs = sorted((here.root / "tenants" / "team" / "packs").glob("*.pack"))
    packs[0].write_bytes(packs[0].read_bytes()[:-9])
    packs[1].unlink()
    with pytest.raises(ImageDamaged):
        here.get(name(), tmp_path / "out")
    here.pull(name(), remote)
    here.get(name(), tmp_path / "out")
    assert read(tmp_path / "out") == read(tmp_path / "in")
    assert here.verify() == []


def test_a_damaged_image_is_not_pushed(store: ImageStore, tmp_path: Path) -> None:
    store.put(name(), image(tmp_path / "in", range(1, 200)))
    pack = next(store.root.rglob("*.pack"))
    data = bytearray(pack.read_bytes())
    data[1000] ^= 4
    pack.write_bytes(data)
    with pytest.raises(ImageDamaged):
        store.push(name(), FsspecRemote(f"file://{tmp_path}/remote"))
    assert not FsspecRemote(f"file://{tmp_path}/remote").has([name().key])


@pytest.mark.parametrize(
    "key",
    [
        "../keys/team",
        "team/../../keys/team",
        "/etc/passwd",
        "team/images/../../x",
        "team/packs/..",
        "team/images/.x",
        "",
    ],
)
def test_no_key_leads_outside(store: ImageStore, tmp_path: Path, key: str) -> None:
    store.put(name(), image(tmp_path / "in", range(1, 4)))
    assert store.objects.has([key]) == set() and store.objects.list(key) == []
    with pytest.raises(WorldError, match="no object"):
        store.objects.read(key)


def test_a_manifest_cannot_write_outside(tmp_path: Path) -> None:
    here = ImageStore(tmp_path / "here")
    here.put(name(), image(tmp_path / "in", range(1, 4)))
    tenant_store = here._tenant_store("team")
    manifest = tenant_store.manifest(name())
    text = json.dumps([file.path for file in manifest.header.files])
    assert "../" not in text
    evil = manifest.encode(tenant_store.key)
    header = evil[1].replace(b'"empty"', b'"../xx"'[:7])
    parts = [evil[0], header, *evil[2:-1]]
    tenant_store.manifest_path(name()).write_bytes(b"".join([*parts, tenant_store.key.seal(*parts)]))
    with pytest.raises(ImageDamaged, match="not below the image"):
        here.get(name(), tmp_path / "out")


@pytest.mark.processes
def test_clear_words_when_a_store_cannot_be_used(s3: str, store: ImageStore, tmp_path: Path) -> None:
    store.put(name(), image(tmp_path / "in", range(1, 4)))
    with pytest.raises(WorldError, match="not there"):
        store.push(name(), s3_remote(s3, "no-such-bucket"))
    quick = {"config_kwargs": {"connect_timeout": 1, "retries": {"max_attempts": 0}}}
    with pytest.raises(WorldError, match="cannot be reached"):
        store.push(name(), s3_remote("http://127.0.0.1:9", **quick))


def test_clear_words_when_a_directory_cannot_be_used(store: ImageStore, tmp_path: Path) -> None:
    store.put(name(), image(tmp_path / "in", range(1, 4)))
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(WorldError, match=f"file://{tmp_path}/file/x: "):
        store.push(name(), FsspecRemote(f"file://{tmp_path}/file/x"))
    with pytest.raises(UsageError, match="cannot use nonsense://x"):
        FsspecRemote("nonsense://x")
    assert os.listdir(tmp_path / "store" / "tmp") == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError("Access Denied"), "looking for a/images/b: access denied .Access Denied"),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate"), "no credentials were found"),
        (type("EndpointConnectionError", (Exception,), {})("no route\nmore"), "cannot be reached: no route$"),
        (ConnectionResetError("reset"), "cannot be reached: reset"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_clear_words_for_what_libraries_raise(error: Exception, words: str, tmp_path: Path) -> None:
    class Refusing:
        def info(self, path: str) -> None:
            raise error

    remote = FsspecRemote(f"file://{tmp_path}")
    remote._files = Refusing()
    with pytest.raises(WorldError, match=words):
        remote.has(["a/images/b"])


def test_a_copy_in_a_directory_survives_a_power_cut_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every directory on the way to an object is flushed after the name in it was given."""
    flushed: list[str] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(os.readlink(f"/proc/self/fd/{file}")), real(file)))
    FsspecRemote(f"file://{tmp_path}/remote").write("team/packs/one", b"x")
    assert flushed[-1] == str(tmp_path / "remote/team/packs")
    assert {str(tmp_path), str(tmp_path / "remote"), str(tmp_path / "remote/team")} <= set(flushed)
