"""Finding and getting CRIU: which one is taken, what is asked of apt, what is said where there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tidewright.base.errors import UsageError, WorldError
from tidewright.checkpoint.criu import install, program
from tidewright.checkpoint.criu.program import Criu, examine, find_criu, least, parse_version, prefix_command

DEB822 = """
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/one.gpg

Types: deb
URIs: http://mirror.example/security/
Suites: bookworm-security
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----
"""
ONE_LINE = (
    "# deb http://mirror.example/debian x\ndeb [signed-by=/keys/two.gpg] http://mirror.example/debian bookworm main\n"
)


def test_the_keyring_of_a_mirror():
    assert install.signed_by(DEB822, "http://mirror.example/debian/") == "/usr/share/keyrings/one.gpg"
    assert install.signed_by(DEB822, "http://mirror.example/security").startswith("-----BEGIN")
    assert install.signed_by(ONE_LINE, "http://mirror.example/debian/") == "/keys/two.gpg"
    assert install.signed_by(ONE_LINE, "http://other.example/") == ""
    made = install.stanza(install.Source("http://mirror.example/debian", "/k.gpg"), "trixie", "main")
    assert install.signed_by(made, "http://mirror.example/debian") == "/k.gpg" and "Suites: trixie\n" in made


def test_kernels_have_their_oldest_version():
    assert least("6.1.0-18-amd64") == (4, 1) and least("6.16-rc1") == (4, 2) and least("7.0.1") == (4, 2)
    assert parse_version("Version: 4.1.1\nGitID: v4") == (4, 1, 1) and parse_version("nonsense") == ()


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ({"ID": "fedora", "PRETTY_NAME": "Fedora 42"}, "dnf install criu"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install criu"),
        ({"ID": "arch"}, "pacman -S criu"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "apt-get install criu"),
        ({}, "criu.org"),
    ],
)
def test_elsewhere_the_distributions_package_is_named(release: dict[str, str], says: str):
    with pytest.raises(UsageError) as caught:
        install.family(release)
    assert says in str(caught.value)


def test_suites_to_look_in():
    assert install.suites({"ID": "debian", "VERSION_CODENAME": "bookworm"}) == [install.DEBIAN_SUITES[least()]]
    assert install.suites({"ID": "ubuntu", "VERSION_CODENAME": "noble"}) == ["noble", "devel"]


def test_os_release(tmp_path: Path):
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n\n')
    assert install.os_release(tmp_path / "os-release") == {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    assert install.os_release(tmp_path / "none") == {}


def fake(path: Path, version: str, check: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\ncase $1 in --version) echo "Version: {version}";; check) echo "Error (x): no way"; exit {check};; esac\n'
    )
    path.chmod(0o755)
    return path


def test_what_is_no_use_says_why(tmp_path: Path):
    assert examine((str(fake(tmp_path / "good", "9.9")),)) == Criu((str(tmp_path / "good"),), "9.9")
    assert "is version 3.17; this kernel needs" in examine((str(fake(tmp_path / "old", "3.17")),))
    assert "does not work here: (x): no way" in examine((str(fake(tmp_path / "weak", "9.9", check=1)),))
    assert "does not start" in examine((str(tmp_path / "none"),))


def test_the_systems_own_comes_first_if_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def private(prefix: Path) -> tuple[str, ...]:
        return (str(prefix / "criu"),)

    monkeypatch.setattr(program, "prefix_command", private)
    monkeypatch.setattr(program.os, "geteuid", lambda: 0)
    monkeypatch.setitem(program.ENVIRON, "PATH", str(tmp_path / "system"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(program.VARIABLE, raising=False)
    assert "tide setup criu" in find_criu()
    home = fake(program.default_prefix() / "criu", "9.1")
    assert find_criu() == Criu((str(home),), "9.1")
    system = fake(tmp_path / "system" / "criu", "9.2")
    assert find_criu() == Criu((str(system),), "9.2")
    assert find_criu(home.parent) == Criu((str(home),), "9.1"), "one that was named comes before the system's"
    fake(system, "9.2", check=1)
    assert find_criu() == Criu((str(home),), "9.1")
    fake(home, "1.0")
    assert "9.2" not in find_criu() and "no way" in find_criu() and "version 1.0" in find_criu()
    monkeypatch.setenv(program.VARIABLE, str(fake(tmp_path / "named" / "criu", "9.3").parent))
    assert find_criu() == Criu((str(tmp_path / "named" / "criu"),), "9.3")
    monkeypatch.setattr(program.os, "geteuid", lambda: 1000)
    assert "root" in find_criu()


def test_apt_is_kept_away_from_the_system(tmp_path: Path):
    said = " ".join(install.options(tmp_path))
    for setting in ("Dir::State=", "Dir::State::status=", "Dir::Cache=", "Dir::Etc::sourceparts="):
        assert f"{setting}{tmp_path}" in said


def test_a_failed_installation_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prefix = tmp_path / "criu"
    (prefix / "old").mkdir(parents=True)
    monkeypatch.setattr(install, "family", lambda release: "debian")
    monkeypatch.setattr(install, "find_source", lambda codename: install.Source("http://mirror.example", ""))

    def fail(*_):
        raise WorldError("no network")

    monkeypatch.setattr(install, "fetch", fail)
    monkeypatch.setattr(install, "os_release", lambda: {"ID": "debian", "VERSION_CODENAME": "bookworm"})
    with pytest.raises(WorldError, match="no network"):
        install.install(prefix)
    assert (prefix / "old").is_dir() and sorted(os.listdir(tmp_path)) == [".criu.lock", "criu"]


def test_the_last_lines_of_a_failed_program_are_reported():
    with pytest.raises(WorldError, match="E: no such package"):
        install._output(["sh", "-c", "echo fine; echo E: no such package; exit 100"])


@pytest.mark.processes
@pytest.mark.full
def test_a_real_one_from_this_machines_mirror(tmp_path: Path):
    try:
        install.find_source(install.os_release().get("VERSION_CODENAME", ""))
    except (UsageError, WorldError, OSError) as error:
        pytest.skip(f"no mirror to fetch from: {error}")
    heard: list[str] = []
    prefix = install.install(tmp_path / "criu", heard.append)
    assert any("fetching" in text for text in heard) and sorted(os.listdir(tmp_path)) == [".criu.lock", "criu"]
    found = examine(prefix_command(prefix), check=False)
    assert isinstance(found, Criu)
    bare = subprocess.run(["env", "-i", *found.command, "--version"], capture_output=True, check=True)
    assert found.version.encode() in bare.stdout
    heard.clear()
    assert install.install(prefix, heard.append) == prefix and heard == []
