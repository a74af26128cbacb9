"""A CRIU of our own where the system has none that is new enough: Debian's package, unpacked into a private prefix.

Uses the machine's own package mirror and keyring through a private apt configuration; nothing is installed into the
system, and no privilege is needed. Knows no mirror by name. docs/why/criu.md has the reasons.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...base.errors import UsageError, WorldError
from .program import Criu, default_prefix, examine, least, prefix_command

PACKAGE = "criu"
DEBIAN_SUITES = {(4, 1): "trixie", (4, 2): "forky"}
"""Suites of Debian that have a CRIU so new."""
UBUNTU_NEWEST = "devel"
"""The name that Ubuntu's archive has for its newest suite, tried after the machine's own."""
COMPONENTS = {"debian": "main", "ubuntu": "main universe"}
INSTEAD = {
    "fedora": "dnf install criu",
    "rhel": "dnf install criu",
    "suse": "zypper install criu",
    "arch": "pacman -S criu",
    "alpine": "apk add criu",
    "gentoo": "emerge sys-process/criu",
}
"""What installs the distribution's own package, by ID or ID_LIKE of os-release(5)."""
STEP_S = 600.0
"""Longest that one step may take: an index of 10 MB, packages of 8 MB over a slow line."""
POLL_S = 0.05


class Source(NamedTuple):
    """Where this machine gets its packages from: a mirror, and the keyring that vouches for it."""

    uri: str
    signed_by: str


Say = Callable[[str], None]
"""Hears what is being done now; an empty text means only that it still is."""


def os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    """The fields of os-release(5); none where there is no such file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip("\"'") for name, _, value in (line.partition("=") for line in lines) if name}


def family(release: dict[str, str]) -> str:
    """Debian's or Ubuntu's ID where this can install CRIU. Raises UsageError naming the distribution's own package."""
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    own = release.get("ID", "")
    if own in COMPONENTS and shutil.which("apt-get") and shutil.which("dpkg"):
        return own
    if "ubuntu" in names or "debian" in names:
        raise UsageError(
            f"no private CRIU for {release.get('PRETTY_NAME', own)}: its suites are not known", "apt-get install criu"
        )
    wanted = _wanted()
    command = next((INSTEAD[name] for name in names if name in INSTEAD), "")
    raise UsageError(
        f"a private CRIU is made of Debian packages only, and this is {release.get('PRETTY_NAME') or 'another system'}",
        f"install CRIU {wanted} or later as root: {command}"
        if command
        else f"install CRIU {wanted} or later; see criu.org",
    )


def _wanted() -> str:
    return ".".join(map(str, least()))


def find_source(codename: str) -> Source:
    """The mirror this machine's own suite comes from, by its apt configuration. Raises UsageError."""
    fields = "$(CREATED_BY)|$(CODENAME)|$(RELEASE)|$(REPO_URI)|$(SOURCESENTRY)"
    listed = _output(["apt-get", "indextargets", "--format", fields])
    for line in listed.splitlines():
        created_by, name, release, uri, entry = line.split("|", 4)
        if created_by == "Packages" and codename in (name, release):
            file = Path(entry.rpartition(":")[0])
            return Source(uri, signed_by(file.read_text() if file.is_file() else "", uri))
    raise UsageError(
        f"apt's configuration names no mirror of {codename}", "install CRIU by hand; tide finds it in PATH"
    )


def signed_by(text: str, uri: str) -> str:
    """The keyring that a sources file (sources.list(5), either style) names for a mirror; empty: apt's trusted ones.

    A key written into the file itself is returned as it stands there.
    """
    where = uri.rstrip("/")
    for line in text.splitlines():
        if line.startswith("deb") and where in line and (found := re.search(r"signed-by=([^\]\s]+)", line)):
            return found[1]
    for stanza in re.split(r"\n\s*\n", text):
        found = re.search(r"^Signed-By:[ \t]*(.*(?:\n[ \t].*)*)", stanza, re.MULTILINE | re.IGNORECASE)
        if found and where in stanza:
            return found[1].strip()
    return ""


def stanza(source: Source, suite: str, components: str) -> str:
    """A sources file in deb822 style for one suite."""
    keys = f"Signed-By: {source.signed_by}\n" if source.signed_by else ""
    return f"Types: deb\nURIs: {source.uri}\nSuites: {suite}\nComponents: {components}\n{keys}"


def options(work: Path) -> list[str]:
    """What keeps apt away from the system: own sources, lists, cache, and an empty list of what is installed.

    With nothing installed, apt itself resolves everything CRIU needs, down to the C library.
    """
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": f"{work}/sources",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::State": f"{work}/state",
        "Dir::State::lists": f"{work}/lists",
        "Dir::State::status": f"{work}/status",
        "Dir::Cache": f"{work}/cache",
        "Dir::Log": f"{work}/log",
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "false",
        "APT::Default-Release": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "30",
        "Acquire::https::Timeout": "30",
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def install(prefix: Path | None = None, say: Say = lambda _: None) -> Path:
    """Put a CRIU into ``prefix``, whole or not at all, and return the prefix. ``say`` hears how far it is.

    Does nothing when there is a good one. Raises UsageError where this cannot be done, WorldError when fetching or
    unpacking fails.
    """
    prefix = (prefix or default_prefix()).absolute()
    if _is_good(prefix):
        return prefix
    release = os_release()
    own = family(release)
    source = find_source(release.get("VERSION_CODENAME", ""))
    prefix.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    for suite in suites(release):
        sources = stanza(source, suite, COMPONENTS[own])
        with _alone(prefix), tempfile.TemporaryDirectory(prefix=f".{prefix.name}.", dir=prefix.parent) as work:
            if not (why := _try(Path(work), sources, suite, prefix, say)):
                return prefix
            failed.append(f"{suite}: {why}")
    raise WorldError(f"no CRIU {_wanted()} from this machine's mirror: {'; '.join(failed)}")


def suites(release: dict[str, str]) -> list[str]:
    """Where to look for CRIU, in order."""
    if release["ID"] == "debian":
        return [DEBIAN_SUITES[least()]]
    return [release.get("VERSION_CODENAME", UBUNTU_NEWEST), UBUNTU_NEWEST]


def _try(work: Path, sources: str, suite: str, prefix: Path, say: Say) -> str:
    """Fetch, unpack, look whether it is good, put in place; why not, or empty."""
    try:
        fetch(work, sources, suite, say)
        say("unpacking")
        for package in sorted((work / "cache/archives").glob("*.deb")):
            _output(["dpkg", "-x", str(package), str(work / "prefix")])
    except WorldError as error:
        return str(error)
    if not _is_good(work / "prefix"):
        return str(_verdict(work / "prefix")).replace(f"{work}/prefix/usr/sbin/", "")
    _swap(work, prefix)
    return ""


def fetch(work: Path, sources: str, suite: str, say: Say) -> None:
    """Download CRIU and everything below it into ``work/cache/archives``. Raises WorldError."""
    for name in ("sources", "state", "lists/partial", "cache/archives/partial", "log", "prefix"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources/criu.sources").write_text(sources)
    say(f"reading the package index of {suite}")
    _output(["apt-get", *options(work), "-q", "update"], say)
    say("fetching criu and its libraries")
    _output(["apt-get", *options(work), "-q", "-y", "--download-only", "install", PACKAGE], say)


def _verdict(prefix: Path) -> Criu | str:
    return examine(prefix_command(prefix), check=False)


def _is_good(prefix: Path) -> bool:
    """There is one that starts and is new enough. Whether the kernel lets it work is asked when it is used."""
    return isinstance(_verdict(prefix), Criu)


def _swap(work: Path, prefix: Path) -> None:
    """Put the new prefix in place of what is there."""
    if prefix.exists():
        prefix.rename(work / "old")
    (work / "prefix").rename(prefix)


@contextlib.contextmanager
def _alone(prefix: Path) -> Iterator[None]:
    """One installation at a time; a second waits."""
    handle = os.open(prefix.with_name(f".{prefix.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _output(command: Sequence[str], say: Say = lambda _: None) -> str:
    """Run a program to its end; what it wrote. Raises WorldError with its last words."""
    environ = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    with tempfile.TemporaryFile() as written:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + STEP_S
        while process.poll() is None:
            say("")
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(POLL_S)
        written.seek(0)
        text = written.read().decode(errors="replace")
    if process.returncode:
        errors = [line for line in text.splitlines() if line.startswith(("E:", "dpkg"))] or text.splitlines()[-2:]
        raise WorldError(f"{command[0]} failed: {' '.join(errors) or f'exit code {process.returncode}'}")
    return text
