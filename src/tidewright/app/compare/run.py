"""A comparison from question to figures: saved results are taken, the rest is run in worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from ...base.units import agreeing, counted
from ...sim.comparison.cells import CellFailure, CellResult, Comparison, grouped
from ..simulate import Question
from .cells import ComparisonQuestion, PlannedCell, command_of, command_of_comparison, planned
from .pool import Observer, Running, answer_all
from .save import SaveFolder, check_save, key_of
from .worker import RunDone, RunFailed, RunResult, WorkerDied

Progress = Callable[[float, str], None]
"""Called with the share that is done and a line of text."""


def compare(
    asked: ComparisonQuestion, workers: int, progress: Progress | None = None, save: Path | None = None
) -> Comparison:
    """Run every cell. A cell that fails is in ``failures``; a question that no cell could answer raises UsageError first."""
    if save is not None:
        check_save(save)
    cells, remarks = planned(asked)
    with SaveFolder(save) if save is not None else nullcontext() as folder:
        found: dict[Question, RunResult] = {}
        keys: dict[Question, str] = {}
        questions = list(dict.fromkeys(cell.question for cell in cells))
        if folder is not None:
            keys = {question: key_of(question) for question in questions}
            found = {question: folder.known[key] for question, key in keys.items() if key in folder.known}
            remarks += _saved(folder, len(found), len(questions), save)
        if len(questions) < len(cells):
            remarks.append(_shared(len(cells) - len(questions), len(cells)))
        watch = _Watch([question for question in questions if question not in found], found, folder, keys, progress)
        answer_all(watch.questions, max(1, min(workers, len(watch.questions))), watch)
    remarks += watch.remarks
    return Comparison(
        command=command_of_comparison(asked), policies=tuple(dict.fromkeys(asked.policies)), remarks=tuple(remarks),
        groups=grouped([_result(cell, found[cell.question]) for cell in cells if cell.question in found], asked.policies),
        failures=tuple(_failure(cell, watch.failed[cell.question]) for cell in cells if cell.question in watch.failed),
    )  # fmt: skip


def cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _shared(sharing: int, cells: int) -> str:
    share = agreeing(sharing, "shares", "share")
    return (
        f"{sharing:,} of {cells:,} cells {share} a run with another, which differs in nothing that their policy reads"
    )


def _saved(folder: SaveFolder, found: int, questions: int, path: Path | None) -> list[str]:
    remarks = []
    if folder.outdated:
        are = agreeing(folder.outdated, "is", "are")
        remarks.append(
            f"{counted(folder.outdated, 'result')} in {path} {are} of another version of the code and {are} not used"
        )
    if folder.torn:
        remarks.append(f"the last result in {path} was incomplete and is run again")
    if found:
        remarks.append(f"{found:,} of {counted(questions, 'run')} {agreeing(found, 'is', 'are')} taken from {path}")
    return remarks


def _result(cell: PlannedCell, found: RunResult) -> CellResult:
    return CellResult(cell=cell.cell, result=found.result, planning_s=found.planning_s, cpu_s=found.cpu_s)


def _failure(cell: PlannedCell, failed: RunFailed) -> CellFailure:
    return CellFailure(cell=cell.cell, cause=failed.cause, command=command_of(cell.question))


class _Watch(Observer):
    """Collects and saves results, and reports progress."""

    def __init__(
        self, questions: list[Question], found: dict[Question, RunResult], folder: SaveFolder | None,
        keys: dict[Question, str], progress: Progress | None,
    ) -> None:  # fmt: skip
        self.questions, self.failed, self.remarks = questions, dict[Question, RunFailed](), list[str]()
        self._found, self._folder, self._keys, self._progress = found, folder, keys, progress
        self._settled = 0
        self._since = time.monotonic()

    def done(self, at: int, found: RunDone | RunFailed) -> None:
        self._settled += 1
        question = self.questions[at]
        if isinstance(found, RunFailed):
            self.failed[question] = found
            return
        self._found[question] = found.found
        if self._folder is None:
            return
        if key_of(question) == self._keys[question]:
            self._folder.add(self._keys[question], question, found.found)
        else:
            self.remarks.append(f"{_name(question)}: a file that it reads changed meanwhile; its result is not saved")

    def retried(self, at: int, died: WorkerDied) -> None:
        self.remarks.append(f"{_name(self.questions[at])}: {died.cause}; it was run again")

    def running(self, cells: Running) -> None:
        if self._progress is None or not self.questions:
            return
        done = self._settled + sum(cells.values())
        share = done / len(self.questions)
        spent = time.monotonic() - self._since
        left = f", about {_minutes(spent / share - spent)} left" if done > 1 and share < 1 else ""
        names = "".join(f"; {_name(self.questions[at])} {share:.0%}" for at, share in sorted(cells.items()))
        failed = f", {len(self.failed)} failed" if self.failed else ""
        self._progress(share, f"{self._settled} of {counted(len(self.questions), 'run')}{failed}{left}{names}")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds < 90 else f"{seconds / 60:.0f}m" if seconds < 5400 else f"{seconds / 3600:.1f}h"


def _name(question: Question) -> str:
    return question.policy if question.load is None else f"{question.policy} at load {question.load:g}"
