"""Steps and samples that programs are counted by, in the file that ``TIDE_STEP_FILE`` names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tidewright.launch

INJECTED = Path(tidewright.launch.__file__).parent / "inject" / "_tidewright" / "steps.py"


class Program:
    """A program with one optimizer and data loaders, and what it has written."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch, ranks: str = "") -> None:
        monkeypatch.setenv("TIDE_STEP_FILE", str(file))
        monkeypatch.setenv("WORLD_SIZE", ranks)
        spec = importlib.util.spec_from_file_location("injected_steps", INJECTED)
        assert spec is not None and spec.loader is not None
        self.file, self.steps = file, importlib.util.module_from_spec(spec)
        monkeypatch.setattr("os.register_at_fork", lambda **_: None)
        spec.loader.exec_module(self.steps)
        self.gradients = True
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(is_grad_enabled=lambda: self.gradients))  # type: ignore[misc]
        hooks: list[Any] = []
        monkeypatch.setattr("atexit.register", lambda function: function)
        self.steps.watch(SimpleNamespace(register_optimizer_step_post_hook=hooks.append))
        self.hook = hooks[0]

        class Iterator:
            def __init__(self, size: int | None) -> None:
                self._index_sampler = SimpleNamespace(batch_size=size)

            def __next__(self) -> str:
                return "batch"

        module: Any = ModuleType("dataloader")
        module._BaseDataLoaderIter = Iterator
        self.steps.watch_batches(module)
        self.loader, self.optimizer = Iterator, type("Optimizer", (), {})()

    def train(self, size: int | None, batches: int = 1) -> None:
        """One step over so many batches."""
        for _ in range(batches):
            assert next(self.loader(size)) == "batch"  # type: ignore[call-overload]
        self.hook(self.optimizer, (), {})
        self.steps.flush()

    def said(self) -> str:
        return self.file.read_text()


def test_samples_are_those_of_the_steps_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path / "steps", monkeypatch, ranks="4")
    program.train(16)
    assert program.said() == "1 64\n"
    program.train(16, batches=2)  # gradients are accumulated
    assert program.said() == "2 192\n"


def test_batches_without_gradients_are_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path / "steps", monkeypatch)
    program.train(16)
    program.gradients = False
    next(program.loader(500))  # type: ignore[call-overload]
    program.gradients = True
    program.train(16)
    assert program.said() == "2 32\n"


def test_where_a_loader_does_not_say_its_batch_only_steps_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path / "steps", monkeypatch)
    program.train(16)
    program.train(None)
    assert program.said() == "2\n"  # and nothing of the longer line before
    program.train(16)
    assert program.said() == "3\n"


@pytest.mark.parametrize("own", ["900\n", "900 12345\n", "epoch 3\n"])
def test_what_a_program_writes_itself_is_let_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    program = Program(tmp_path / "steps", monkeypatch)
    program.file.write_text(own)
    program.train(16)
    assert program.said() == own
