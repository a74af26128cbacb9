"""Programs that nobody here wrote, started as their own documentation says; they print no digest of ours.

What is compared is what their users look at: the files they leave and the lines they print, less whatever tells the time.
Some come with packages (``python -m rl_zoo3.train``), others lie in checkouts below the folder TIDEWRIGHT_PROGRAMS.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.unmodified.harness import user_environment

CHECKOUTS = Path(os.environ.get("TIDEWRIGHT_PROGRAMS", "../programs"))
TIMES = re.compile(r"fps|time_elapsed|\d\d:\d\d:\d\d|\bpid\b|[Ww]arning|wall|(time|took|elapsed|ETA)[:= ]")
"""Lines that differ from run to run of any program: clocks, rates and process ids."""


@dataclass(frozen=True, slots=True)
class ThirdParty:
    """``command`` is typed in an own folder, after ``prepare`` has put its data there.

    ``results`` are globs of files that two runs leave with equal bytes; ``FILE!MEMBER`` is a part of a zip archive.
    ``prints`` finds the lines that two runs print alike; ``checkout`` is the repository that must lie below CHECKOUTS.
    """

    name: str
    command: tuple[str, ...]
    results: tuple[str, ...] = ()
    prints: str = "(?!)"
    needs: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = lambda folder: None
    checkout: str = ""
    slots: int = 1

    def argv(self) -> list[str]:
        """What a user would type."""
        return [word.format(python=sys.executable, code=self.code) for word in self.command]

    def environment(self, scratch: Path) -> dict[str, str]:
        """What the user's shell has; hashes of strings are the same in every run, as gensim asks for."""
        return {**user_environment(scratch), "PYTHONHASHSEED": "0"}

    @property
    def code(self) -> Path:
        return (CHECKOUTS / self.checkout).resolve()

    def missing(self) -> str:
        """What this machine lacks for it; empty when nothing."""
        lacking = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if self.checkout and not self.code.is_dir():
            lacking.append(f"a checkout of {self.checkout} in TIDEWRIGHT_PROGRAMS ({CHECKOUTS})")
        return ", ".join(lacking)

    def outcome(self, folder: Path, log: str) -> dict[str, str]:
        """Everything that must be equal in two runs, by name. Raises AssertionError where a result is missing."""
        found = {f"line {n}": line for n, line in enumerate(self._lines(log), 1)}
        for pattern in self.results:
            name, _, member = pattern.partition("!")
            files = sorted(folder.glob(name))
            assert files, f"{self.name} left no {name}\n{log[-3000:]}"
            found |= {f"{file.relative_to(folder)}{pattern[len(name) :]}": digest(file, member) for file in files}
        return found

    def _lines(self, log: str) -> Iterator[str]:
        wanted = re.compile(self.prints)
        return (line for line in log.splitlines() if wanted.search(line) and not TIMES.search(line))


def digest(file: Path, member: str) -> str:
    """SHA-256 of a file, or of a part of a zip archive (whose own bytes hold the time at which it was written)."""
    if not member:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    with zipfile.ZipFile(file) as archive:
        return hashlib.sha256(archive.read(member)).hexdigest()


# -- data that the programs would otherwise download ----------------------------------------------------------------


def words(folder: Path, name: str = "text.txt", lines: int = 4000) -> None:
    """Sentences of made-up words with a distribution like that of a language (Zipf)."""
    dice = np.random.default_rng(1)
    ranks = np.minimum(dice.zipf(1.3, (lines, 12)), 400)
    (folder / name).write_text("\n".join(" ".join(f"w{word}" for word in row) for row in ranks) + "\n")


def corpus(folder: Path) -> None:
    """The three files of a language model's corpus, as word_language_model expects them."""
    (folder / "corpus").mkdir()
    for name, lines in (("train", 3000), ("valid", 200), ("test", 200)):
        words(folder / "corpus", f"{name}.txt", lines)


def tagged(folder: Path) -> None:
    """spaCy's training files and its configuration: sentences whose words have the part of speech that their number tells."""
    import spacy
    from spacy.cli.init_config import init_config
    from spacy.tokens import Doc, DocBin

    language, dice = spacy.blank("en"), np.random.default_rng(3)
    for name, count in (("train", 400), ("dev", 40)):
        docs = DocBin()
        for _ in range(count):
            numbers = dice.integers(0, 60, 10)
            tags = ["NOUN" if number % 3 else "VERB" for number in numbers]
            docs.add(Doc(language.vocab, words=[f"w{number}" for number in numbers], tags=tags))
        docs.to_disk(folder / f"{name}.spacy")
    init_config(lang="en", pipeline=["tagger"]).to_disk(folder / "tagger.cfg")


def tokens(folder: Path) -> None:
    """nanoGPT's data: two files of token numbers, and its own model and trainer beside them."""
    home = folder / "data" / "made"
    home.mkdir(parents=True)
    ramp = np.cumsum(np.random.default_rng(4).integers(1, 4, 40000)) % 64
    for name, part in (("train", ramp[:36000]), ("val", ramp[36000:])):
        part.astype(np.uint16).tofile(home / f"{name}.bin")
    for name in ("model.py", "train.py", "configurator.py"):
        (folder / name).write_bytes((CHECKOUTS / "karpathy/nanoGPT" / name).resolve().read_bytes())
