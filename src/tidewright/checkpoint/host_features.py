"""What a restored program relies on besides its image: instruction sets, architecture, and the files it has mapped."""

from __future__ import annotations

import functools
import mmap
import os
import platform
import struct
from pathlib import Path
from typing import Any

from blake3 import blake3

VISIBLE = (
    "3dnow", "abm", "adx", "aes", "amx", "avx", "bmi", "cldemote", "clflush", "clwb", "clzero", "cmov", "cx16", "cx8",
    "enqcmd", "erms", "f16c", "fma", "fpu", "fsgsbase", "fsrm", "fxsr", "gfni", "hle", "lahf_lm", "lwp", "mmx",
    "monitorx", "movbe", "movdir", "ospke", "pclmulqdq", "popcnt", "prefetchw", "rdpid", "rdrand", "rdseed", "rdtscp",
    "rtm", "serialize", "sha", "sm3", "sm4", "sse", "ssse3", "tbm", "tsxldtrk", "vaes", "vpclmulqdq", "waitpkg", "xop",
    "xsave",
)  # fmt: skip
"""Beginnings of /proc/cpuinfo flags (arch/x86/include/asm/cpufeatures.h) that programs choose instructions by; the
others speak of the kernel's own business: errata, virtualisation, power."""
WHOLE_LIMIT, SAMPLE, SAMPLES = 16 * 2**20, 64 * 2**10, 64
"""Files above the limit that have no build id are hashed by evenly spaced samples of this size."""
NT_GNU_BUILD_ID = 3
PT_NOTE = 4
"""elf(5)"""


def cpu_flags(text: str | None = None) -> frozenset[str]:
    """Instruction-set flags of this host's processors, or of ``text`` in the form of /proc/cpuinfo."""
    lines = (text if text is not None else Path("/proc/cpuinfo").read_text()).splitlines()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "Features":  # ARM: all of them are the programs' business
            return frozenset(value.split())
        if name.strip() == "flags":
            return frozenset(flag for flag in value.split() if flag.startswith(VISIBLE))
    return frozenset()


@functools.cache
def host() -> dict[str, Any]:
    """Facts of this host that an image depends on."""
    return {
        "machine": platform.machine(),
        "page_size": mmap.PAGESIZE,
        "kernel": platform.release(),
        "flags": sorted(cpu_flags()),
    }


def host_differences(taken: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Why an image taken on one host cannot run on another; sentences."""
    if taken["machine"] != here["machine"]:
        return [f"the image is of a {taken['machine']} host, this one is {here['machine']}"]
    found = []
    if taken["page_size"] != here["page_size"]:
        found.append(f"memory pages have {here['page_size']} bytes here, {taken['page_size']} where it was taken")
    if missing := sorted(set(taken["flags"]) - set(here["flags"])):
        found.append(f"this processor lacks {', '.join(missing)}, which the program may have chosen to use")
    return found


def fingerprint(handle: int) -> str:
    """What tells a mapped file from another version of it: an ELF file's build id, else a hash. Raises OSError."""
    now = os.fstat(handle)
    return _fingerprint(handle, (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))


_known: dict[tuple[int, int, int, int], str] = {}
_KNOWN_MOST = 10_000


def _fingerprint(handle: int, identity: tuple[int, int, int, int]) -> str:
    if identity not in _known:
        if len(_known) >= _KNOWN_MOST:
            _known.clear()
        _known[identity] = _build_id(handle) or _hash(handle, identity[2])
    return _known[identity]


def _hash(handle: int, size: int) -> str:
    hasher = blake3(size.to_bytes(8, "little"))
    if size <= WHOLE_LIMIT:
        for offset in range(0, size, 2**20):
            hasher.update(os.pread(handle, 2**20, offset))
        return f"blake3:{hasher.hexdigest(16)}"
    for number in range(SAMPLES):
        hasher.update(os.pread(handle, SAMPLE, (size - SAMPLE) * number // (SAMPLES - 1)))
    return f"samples:{hasher.hexdigest(16)}"


def _build_id(handle: int) -> str:
    """The GNU build id of a 64-bit little-endian ELF file; empty for anything else."""
    header = os.pread(handle, 64, 0)
    if header[:6] != b"\x7fELF\x02\x01" or len(header) < 64:
        return ""
    table, entry, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
    for number in range(count):
        segment = os.pread(handle, 56, table + number * entry)
        if len(segment) == 56 and struct.unpack_from("<I", segment)[0] == PT_NOTE:
            offset, size = struct.unpack_from("<Q", segment, 8)[0], struct.unpack_from("<Q", segment, 32)[0]
            if found := _note(os.pread(handle, min(size, 2**16), offset)):
                return found
    return ""


def _note(notes: bytes) -> str:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name = at + 12
        content = name + (name_size + 3 & ~3)
        if kind == NT_GNU_BUILD_ID and notes[name : name + name_size] == b"GNU\0":
            return f"build-id:{notes[content : content + size].hex()}"
        at = content + (size + 3 & ~3)
    return ""
