"""Text files read line by line, packed (.gz, .zst, .xz) or not, so that their size does not matter; and the rows of CSV in them.

It refuses to know what the lines and cells say.
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..base.errors import UsageError
from ..base.units import counted

Reading = Callable[[int, int], None]
"""Called now and then with (bytes of the file read, bytes of the file)."""
PACKED = (".gz", ".zst", ".xz")
_NOT_PACKED = (".bz2", ".zip", ".lz4", ".lzma", ".br", ".7z", ".z", ".zstd", ".gzip", ".tgz", ".parquet")
"""Endings of files that are no plain text."""
_LINES = 1 << 16
_BUFFER = 1 << 20
_PACKED_BYTES = 1 << 11
"""Unpacked at a time: equal bytes pack into blocks of 4 bytes for 128 KiB, and what comes out of them is in memory."""
ROW_LINES = 100
"""Most lines of one row: with more, a cell has most likely swallowed the rows behind a quote that is not closed."""
_CLOSE = f"close the quote in its cell, and write a quote inside quotes twice; a row may span {ROW_LINES} lines"


class _Frames(io.RawIOBase):
    """The frames of a file, unpacked one after another by what ``start`` makes; unlike zstandard's own reader it says so when the
    last one is cut off, and unlike lzma's when no frame is what follows one. ``padding`` may stand between frames."""

    def __init__(self, packed: IO[bytes], start: Callable[[], Any], padding: bytes = b"") -> None:
        self._packed, self._start, self._padding = packed, start, padding
        self._frame: Any = None
        self._input = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` with some bytes; 0 at the end. Raises EOFError when the file ends inside a frame."""
        while not self._ready:
            self._input = self._input or self._packed.read(_PACKED_BYTES)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("it ends inside a frame")
                return 0
            if self._frame is None:
                self._input = self._input.lstrip(self._padding)
                if not self._input:
                    continue
                self._frame = self._start()
            self._ready = memoryview(self._frame.decompress(self._input))
            self._input = b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def _zstd_frame() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


def packed(plain: bytes, ending: str) -> bytes:
    """The bytes as a file of this ending has them; the same ones every time."""
    if ending == ".gz":
        return gzip.compress(plain, mtime=0)
    if ending == ".xz":
        return lzma.compress(plain)
    if ending == ".zst":
        import zstandard

        return zstandard.ZstdCompressor().compress(plain)
    return plain


def check_packed(path: Path, option: str) -> None:
    """Raise UsageError for a name whose ending promises what ``packed`` does not make."""
    if path.suffix.lower() in _NOT_PACKED or (path.suffix.lower() in PACKED and path.suffix not in PACKED):
        raise UsageError(
            f"{option} {path}: files of the ending {path.suffix!r} are not written",
            f"give one of {', '.join(PACKED)}, or a name like jobs.csv for plain text",
        )


def stem(path: Path) -> str:
    """The file's name without its endings: ``jobs`` of ``jobs.csv.gz``."""
    return Path(path.stem).stem if path.suffix in PACKED else path.stem


@contextmanager
def open_lines(path: Path, reading: Reading | None = None) -> Iterator[Iterator[str]]:
    """The lines of a file, with their ends. Raises UsageError when it cannot be read, is damaged or is not text."""
    try:
        with path.open("rb") as file, _unpacked(path, file) as text:
            yield _counted(text, file, path.stat().st_size, reading)
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read {path}: it is not text ({error.reason})", _remedy(path)) from error
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UsageError(f"cannot read {path}: it is damaged or cut off ({error})", _remedy(path)) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", "give the path of a file") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "zstandard":
            raise
        raise UsageError(f"cannot read {path}: it is damaged ({error})", _remedy(path)) from error


def _remedy(path: Path) -> str:
    return (
        f"the ending {path.suffix!r} says how it is packed: {', '.join(PACKED)}, anything else is plain text in UTF-8"
    )


def _unpacked(path: Path, file: IO[bytes]) -> io.TextIOWrapper:
    stream: Any = file
    if path.suffix == ".gz":
        stream = gzip.GzipFile(fileobj=file)
    elif path.suffix == ".xz":
        stream = io.BufferedReader(_Frames(file, lzma.LZMADecompressor, padding=b"\0"), _BUFFER)
    elif path.suffix == ".zst":
        stream = io.BufferedReader(_Frames(file, _zstd_frame), _BUFFER)
    return io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")


def _counted(text: io.TextIOWrapper, file: IO[bytes], size: int, reading: Reading | None) -> Iterator[str]:
    for number, line in enumerate(text):
        if reading is not None and not number % _LINES:
            reading(file.tell(), size)
        yield line


def numbered_rows(lines: Iterable[str], source: str, remedy: str) -> Iterator[tuple[list[str], int]]:
    """Each row with the number of its last line; a line without cells is an empty row.

    Raises UsageError for what is no CSV, with the line at which the quote opens where one is not closed.
    """
    row: list[str] = []
    before = 0

    def noted() -> Iterator[str]:
        for line in lines:
            row.append(line)
            if len(row) > ROW_LINES:
                raise csv.Error(f"its row spans more than {ROW_LINES} lines")
            yield line
        row.append("")  # what fails is the end, not the line before it

    reader = csv.reader(noted(), strict=True)
    try:
        for cells in reader:
            row.clear()
            before = reader.line_num
            yield cells, before
    except csv.Error as error:
        if '"' not in "".join(row):
            raise UsageError(f"{source}:{reader.line_num}: {error}", remedy) from error
        at = before + 1 + _opening(row[:-1])
        raise UsageError(
            f"{source}:{at}: a quote opens here and is not closed where a cell ends ({error})", _CLOSE
        ) from error


def named_rows(
    lines: Iterable[str], source: str, remedy: str, needed: Sequence[str], wrong: Callable[[int, str], None]
) -> Iterator[tuple[dict[str, str], int]]:
    """Each row by the names in the header, with the number of its last line; empty rows are left out.

    A row with more or fewer cells than the header is left out, too, and ``wrong`` is called with its line and what is wrong.
    Raises UsageError as ``numbered_rows`` does, for a column ``needed`` that is missing, and for one that is there twice.
    """
    rows = numbered_rows(lines, source, remedy)
    header = [cell.strip() for cell in next(rows, ([], 0))[0]]
    missing = [name for name in needed if name not in header]
    if missing:
        raise UsageError(f"{source}:1: no column {', '.join(missing)}", remedy)
    check_header(header, f"{source}:1")
    for cells, line in rows:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) < len(header) or any(cell.strip() for cell in cells[len(header) :]):
            wrong(line, wrong_width(len(cells), len(header)))
            continue
        yield dict(zip(header, cells, strict=False)), line


def check_header(names: Sequence[str], place: str) -> None:
    """Raises UsageError where two columns have one name; a column may have none."""
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise UsageError(f"{place}: two columns are called {twice[0]}", "rename the one that is not meant")


def wrong_width(cells: int, columns: int) -> str:
    """The mistake of a row whose number of cells is not that of the header."""
    return f"{counted(cells, 'cell')}, but the header names {counted(columns, 'column')}"


def _opening(row: list[str]) -> int:
    """At which of these lines, which end inside quotes, the last quoted cell begins: each but the first begins inside quotes."""
    return max((at for at, line in enumerate(row) if '"' in line.replace('""', "")), default=0)
