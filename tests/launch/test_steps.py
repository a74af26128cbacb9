"""Steps and samples that programs are counted by, in the file that ``TIDE_STEP_FILE`` names."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tidewright.launch

INJECTED = Path(tidewright.launch.__file__).parent / "inject" / "_tidewright" / "steps.py"


class Tensor:
    """What is counted of one: its shape."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.ndim = shape, len(shape)


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
        torch = SimpleNamespace(is_grad_enabled=lambda: self.gradients, Tensor=Tensor)
        monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[misc]
        hooks: list[Any] = []
        monkeypatch.setattr("atexit.register", lambda function: function)
        self.steps.watch(SimpleNamespace(register_optimizer_step_post_hook=hooks.append))
        self.hook = hooks[0]

        class Iterator:
            _auto_collation = True
            _dataset_kind = 0

            def __init__(self, *batches: Any) -> None:
                self.batches = iter(batches)

            def __next__(self) -> Any:
                return next(self.batches)

        module: Any = ModuleType("dataloader")
        module._BaseDataLoaderIter = Iterator
        self.steps.watch_batches(module)
        self.loader, self.optimizer = Iterator, type("Optimizer", (), {})()

    def step(self) -> None:
        self.hook(self.optimizer, (), {})
        self.steps.flush()

    def train(self, *batches: Any, **attributes: Any) -> None:
        """One step over these."""
        iterator = self.loader(*batches)
        vars(iterator).update(attributes)
        for batch in batches:
            assert next(iterator) is batch  # type: ignore[call-overload]
        self.step()

    def said(self) -> str:
        return self.file.read_text()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(tmp_path / "steps", monkeypatch)


def test_samples_are_those_of_the_steps_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(tmp_path / "steps", monkeypatch, ranks="4")
    program.train(Tensor(16, 3))
    assert program.said() == "1 64\n"
    program.train(Tensor(16, 3), Tensor(16, 3))  # gradients are accumulated
    assert program.said() == "2 192\n"


@pytest.mark.parametrize(
    "batch",
    [
        Tensor(7),
        [Tensor(7, 3), Tensor(9)],
        ("text", Tensor(7)),
        {"names": ["a"], "images": [Tensor(7)]},
        [{"input_ids": Tensor(7, 512)}, Tensor(7)],
    ],
)
def test_a_batch_is_as_long_as_its_first_tensor(program: Program, batch: Any) -> None:
    program.train(batch)  # a last batch may be shorter than the loader's size
    assert program.said() == "1 7\n"


def test_batches_without_gradients_are_no_training(program: Program) -> None:
    program.train(Tensor(16))
    program.gradients = False
    next(program.loader(Tensor(500)))  # type: ignore[call-overload]
    program.gradients = True
    program.train(Tensor(16))
    assert program.said() == "2 32\n"


def test_an_evaluation_between_steps_is_no_training(program: Program) -> None:
    """Programs enter no_grad in the loop, where the batch is there already."""
    training = program.loader(Tensor(16), Tensor(16))
    next(training)
    program.step()
    evaluation = program.loader(Tensor(500), Tensor(500))
    next(evaluation), next(evaluation)
    del evaluation  # another loader may come to lie where it lay
    next(training)
    program.step()
    assert program.said() == "2 32\n"


def test_an_evaluation_of_an_unknown_loader_spoils_nothing(program: Program) -> None:
    program.train(Tensor(16))
    next(program.loader(object()))  # type: ignore[call-overload]
    program.train(Tensor(16))
    assert program.said() == "2 32\n"


@pytest.mark.parametrize("batch", ["text", [], [["deeper", [[[Tensor(4)]]]]], Tensor(), {"a": 1}])
def test_where_a_batch_does_not_show_its_samples_only_steps_are_said(program: Program, batch: Any) -> None:
    program.train(Tensor(16))
    program.train(batch)
    assert program.said() == "2\n"  # and nothing of the longer line before
    program.train(Tensor(16))
    assert program.said() == "3\n"


def test_a_loader_that_hands_out_single_samples_is_not_counted(program: Program) -> None:
    program.train(Tensor(3, 224, 224), _auto_collation=False)
    assert program.said() == "1\n"


def test_a_stream_that_accelerate_may_read_for_all_ranks_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path / "steps", monkeypatch, ranks="2")
    program.train(Tensor(8), _dataset_kind=1)
    assert program.said() == "1 16\n"
    monkeypatch.setitem(sys.modules, "accelerate", ModuleType("accelerate"))
    program.train(Tensor(8), _dataset_kind=1)
    assert program.said() == "2\n"


def test_what_a_program_raises_while_it_is_counted_does_not_end_it(program: Program) -> None:
    class Batch(Tensor):
        @property
        def shape(self) -> tuple[int, ...]:  # type: ignore[override]
            raise NotImplementedError

        @shape.setter
        def shape(self, value: object) -> None:
            pass

    program.train(Tensor(16))
    program.train(Batch(16))
    assert program.said() == "2\n"


@pytest.mark.parametrize("own", ["900\n", "900 12345\n", "epoch 3\n"])
def test_what_a_program_writes_itself_is_let_be(program: Program, own: str) -> None:
    program.file.write_text(own)
    program.train(Tensor(16))
    assert program.said() == own


def test_a_forked_child_writes_nothing(program: Program) -> None:
    program.train(Tensor(16))
    child = os.fork()
    if not child:
        program.steps._forked()
        for _ in range(3):
            program.train(Tensor(16))
        os._exit(0)
    os.waitpid(child, 0)
    assert program.said() == "1 16\n"


COUNTED = """
import sys
sys.path.insert(0, sys.argv[1])
from _tidewright import steps
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
steps.watch(sys.modules["torch.optim.optimizer"])
steps.watch_batches(torch.utils.data.dataloader)

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(10, 3))

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.ones(10, 3)
loaders = (
    DataLoader(TensorDataset(data, data[:, :1]), batch_size=4),
    DataLoader(TensorDataset(data, data[:, :1]), batch_size=64, num_workers=1),
    DataLoader(Stream(), batch_size=8),
)
evaluation = DataLoader(data, batch_size=5)
for loader in loaders:
    for batch in loader:
        samples = batch[0] if isinstance(batch, list) else batch
        model(samples).sum().backward()
        optimizer.step()
    for batch in evaluation:
        with torch.no_grad():
            model(batch)
"""


def test_real_data_loaders_are_counted_to_the_sample(tmp_path: Path) -> None:
    """Short last batches, workers, a stream, and an evaluation after each."""
    pytest.importorskip("torch")
    file = tmp_path / "steps"
    subprocess.run(
        [sys.executable, "-c", COUNTED, INJECTED.parents[1]],
        env={**os.environ, "TIDE_STEP_FILE": str(file)},
        check=True,
    )
    assert file.read_text() == "6 30\n"
