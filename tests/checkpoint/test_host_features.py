"""What an image needs of a host, and the manifest that guards it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.checkpoint import host_features
from tidewright.checkpoint.host_features import cpu_flags, fingerprint, host, host_differences
from tidewright.checkpoint.manifest import DamagedImage, verify, write_manifest

INTEL = "processor\t: 0\nflags\t\t: fpu sse4_2 avx2 avx512f constant_tsc md_clear vmx\n"
ARM = "processor : 0\nFeatures : fp asimd sve\n"


def test_only_what_programs_can_see_counts():
    assert cpu_flags(INTEL) == {"fpu", "sse4_2", "avx2", "avx512f"}
    assert cpu_flags(ARM) == {"fp", "asimd", "sve"}
    assert cpu_flags("nothing") == frozenset()
    assert host()["flags"] or not Path("/proc/cpuinfo").exists()


def test_differences_between_hosts():
    here = {"machine": "x86_64", "page_size": 4096, "flags": ["avx2", "sse2"], "kernel": "6.1"}
    assert host_differences(here, {**here, "flags": ["avx2", "avx512f", "sse2"], "kernel": "6.18"}) == []
    assert "lacks avx2" in host_differences(here, {**here, "flags": ["sse2"]})[0]
    assert "65536 bytes here" in host_differences(here, {**here, "page_size": 65536})[0]
    assert host_differences(here, {**here, "machine": "aarch64"}) == [
        "the image is of a x86_64 host, this one is aarch64"
    ]


def test_a_build_id_outlives_a_copy_and_tells_programs_apart(tmp_path: Path):
    prints = []
    for source in (sys.executable, shutil.which("sh")):
        copy = tmp_path / Path(source).name
        shutil.copy(source, copy)
        with copy.open("rb") as one, open(source, "rb") as other:
            prints.append(fingerprint(one.fileno()))
            assert prints[-1] == fingerprint(other.fileno())
    assert prints[0] != prints[1] and prints[1].startswith("build-id:")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_have_a_fingerprint(content: bytes):
    with tempfile.TemporaryFile() as file:
        file.write(b"\x7fELF\x02\x01" + content)
        file.flush()
        assert fingerprint(file.fileno())


def test_large_files_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_features, "WHOLE_LIMIT", 1000)
    monkeypatch.setattr(host_features, "SAMPLE", 64)
    path = tmp_path / "data"
    path.write_bytes(bytes(100_000))
    with path.open("r+b") as file:
        before = fingerprint(file.fileno())
        file.seek(99_990)
        file.write(b"x")
        file.flush()
        assert before.startswith("samples:") and fingerprint(file.fileno()) != before


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), st.binary(max_size=50), min_size=1), st.data())
def test_every_change_of_an_image_is_found(content: dict[str, bytes], data: st.DataObject):
    with tempfile.TemporaryDirectory() as name:
        image = Path(name)
        for file, text in content.items():
            (image / file).write_bytes(text)
        size = write_manifest(image).size_bytes
        assert verify(image).size_bytes == size == sum(map(len, content.values()))
        victim = image / data.draw(st.sampled_from(sorted(content)))
        changed = data.draw(st.binary(max_size=50).filter(lambda text: text != victim.read_bytes()))
        victim.write_bytes(changed)
        with pytest.raises(DamagedImage, match=victim.name):
            verify(image)


def test_a_manifest_names_only_what_lies_in_the_image(tmp_path: Path):
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "manifest.json").write_text('{"files": {"../secret": [1, "00"]}}')
    with pytest.raises(DamagedImage, match="no name of a file"):
        verify(tmp_path / "image")
