"""CRIU's list of open files (files.img), as far as we change it: the size that a file must have is taken out.

CRIU refuses a file that has another size than in the image. Of a file that others write to as well no size can be
known; without the field CRIU does not ask (criu/files-reg.c, validate_file). Wire format: protobuf.dev, "Encoding".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ...base.errors import WorldError

NAME = "files.img"
COMMON, MAGIC = 0x54564319, 0x56303138
"""criu/include/magic.h: IMG_COMMON_MAGIC, FILES_MAGIC."""
ENTRY_REG, REG_NAME, REG_SIZE = 3, 6, 8
"""images/fdinfo.proto (file_entry), images/regfile.proto (reg_file_entry)."""
VARINT, WIDE, BYTES, NARROW = 0, 1, 2, 5
VARINT_LIMIT = 10
"""Bytes of the longest number."""


class Field(NamedTuple):
    """One field of a message; ``raw`` is all of it, ``value`` what comes after tag and length."""

    number: int
    kind: int
    raw: bytes
    value: bytes


def malformed(what: str) -> WorldError:
    """What is raised for anything that is not as it should be."""
    return WorldError(f"CRIU's {NAME} is not of a form that is known here: {what}")


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends. Raises WorldError."""
    number = 0
    for count, byte in enumerate(data[at : at + VARINT_LIMIT]):
        number |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return number, at + count + 1
    raise malformed(f"no number at byte {at} of {len(data)}")


def encoded(number: int) -> bytes:
    """A number as ``varint`` reads it."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def fields(message: bytes) -> Iterator[Field]:
    """All fields of a message, in order. Raises WorldError."""
    at = 0
    while at < len(message):
        tag, begin = varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            end = varint(message, begin)[1]
        elif kind == BYTES:
            length, begin = varint(message, begin)
            end = begin + length
        elif kind in (WIDE, NARROW):
            end = begin + (8 if kind == WIDE else 4)
        else:
            raise malformed(f"a field of kind {kind}")
        if end > len(message) or not number:
            raise malformed(f"field {number} ends at byte {end} of {len(message)}")
        yield Field(number, kind, message[at:end], message[begin:end])
        at = end


def without(message: bytes, number: int) -> bytes:
    """A message less its fields of that number; everything else is as it was. Raises WorldError."""
    return b"".join(each.raw for each in fields(message) if each.number != number)


def messages(content: bytes) -> Iterator[bytes]:
    """The messages of a whole files.img. Raises WorldError."""
    if content[:8] != struct.pack("<II", COMMON, MAGIC):
        raise malformed(f"it begins with {content[:8].hex() or 'nothing'}")
    at = 8
    while at < len(content):
        if at + 4 > len(content):
            raise malformed("it ends within a length")
        (length,) = struct.unpack_from("<I", content, at)
        if (end := at + 4 + length) > len(content):
            raise malformed(f"a message ends at byte {end} of {len(content)}")
        yield content[at + 4 : end]
        at = end


def forget_sizes(images: Path, paths: Iterable[str]) -> None:
    """Let CRIU restore these files whatever size they have. Raises OSError, and WorldError when it has not listed one."""
    names, found = {os.fsencode(path) for path in paths}, set[bytes]()
    if not names:
        return
    content = (images / NAME).read_bytes()
    out = [content[:8]]
    for message in messages(content):
        changed = b"".join(_forgetful(each, names, found) for each in fields(message))
        out += [struct.pack("<I", len(changed)), changed]
    if missing := names - found:
        raise malformed(f"it does not name {os.fsdecode(min(missing))}")
    (images / NAME).write_bytes(b"".join(out))


def _forgetful(field: Field, names: set[bytes], found: set[bytes]) -> bytes:
    if field.number != ENTRY_REG or field.kind != BYTES:
        return field.raw
    named = {each.value for each in fields(field.value) if each.number == REG_NAME and each.kind == BYTES} & names
    if not named:
        return field.raw
    found |= named
    regular = without(field.value, REG_SIZE)
    return encoded(ENTRY_REG << 3 | BYTES) + encoded(len(regular)) + regular
