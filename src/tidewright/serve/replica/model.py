"""A model at work in a replica: loaded, called with numpy arrays, in groups of equal shapes and bounded size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ...base.errors import UsageError
from ..define import ModelDefinition
from ..protocol.datatypes import BYTES, Tensor, dtype_of
from ..protocol.signature import ModelSignature

Arrays = dict[str, Tensor]
_REPEATS = 3


def load(name: str) -> ModelDefinition:
    """The definition that ``module:attribute`` names. Raises UsageError."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise UsageError(
            f"not a model: {name!r}", "write it like app:predict, a module and what @serves decorates in it"
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"cannot load {name}: {error}", "is it importable from the directory where it is deployed?"
        ) from error
    if not isinstance(found, ModelDefinition):
        raise UsageError(f"{name} is not decorated with @serves", "see docs/serving.md")
    return found


class ReplicaModel:
    """Calls are made from one thread."""

    def __init__(self, definition: ModelDefinition) -> None:
        self.signature: ModelSignature = definition.signature
        target = definition.target() if definition.factory else definition.target
        self._call: Callable[..., Any] = _of_module(target) if _is_module(target) else target

    def run(self, requests: Sequence[Arrays]) -> list[Arrays | str]:
        """Outputs of each request, or what went wrong with it. Requests of equal shapes go through the model together; where that
        fails, each goes alone, so that one does not spoil the others."""
        results: list[Arrays | str] = [""] * len(requests)
        for group in self._groups(requests):
            for at, result in zip(group, self._together([requests[at] for at in group]), strict=True):
                results[at] = result
        return results

    def _groups(self, requests: Sequence[Arrays]) -> list[list[int]]:
        if not self.signature.batched:
            return [[at] for at in range(len(requests))]
        alike: dict[Any, list[list[int]]] = {}
        sizes: dict[Any, int] = {}
        for at, arrays in enumerate(requests):
            shape = tuple((name, arrays[name].shape[1:]) for name in sorted(arrays))
            size = _items(arrays)
            groups = alike.setdefault(shape, [])
            if not groups or sizes[shape] + size > self.signature.max_batch:
                groups.append([])
                sizes[shape] = 0
            groups[-1].append(at)
            sizes[shape] += size
        return [group for groups in alike.values() for group in groups]

    def _together(self, group: list[Arrays]) -> list[Arrays | str]:
        try:
            return list(self._answers(group))
        except Exception as error:
            if len(group) > 1:
                return [self._together([one])[0] for one in group]
            return [f"{type(error).__name__}: {error}"]

    def _answers(self, group: list[Arrays]) -> list[Arrays]:
        if not self.signature.batched:
            return [self._outputs(self._call(**group[0]))]
        sizes = [_items(arrays) for arrays in group]
        joined = group[0] if len(group) == 1 else {
            name: np.concatenate([arrays[name] for arrays in group]) for name in group[0]
        }  # fmt: skip
        outputs = self._outputs(self._call(**joined))
        for name, tensor in outputs.items():
            if not tensor.ndim or tensor.shape[0] != sum(sizes):
                raise ValueError(f"output {name} has the shape {list(tensor.shape)} for a batch of {sum(sizes)}")
        ends = np.cumsum(sizes).tolist()
        return [
            {name: tensor[end - size : end] for name, tensor in outputs.items()}
            for size, end in zip(sizes, ends, strict=True)
        ]

    def _outputs(self, returned: Any) -> Arrays:
        names = [one.name for one in self.signature.outputs]
        if isinstance(returned, dict):
            found = {str(name): np.asarray(value) for name, value in returned.items()}
        else:
            values = returned if isinstance(returned, (tuple, list)) and len(names) != 1 else (returned,)
            if len(values) != len(names or ("output",)):
                raise ValueError(f"{len(values)} outputs, the signature has {len(names)}")
            found = {name: np.asarray(value) for name, value in zip(names or ("output",), values, strict=True)}
        for one in self.signature.outputs:
            if one.name not in found:
                raise ValueError(f"output {one.name} is missing")
            if one.datatype != BYTES:
                found[one.name] = found[one.name].astype(dtype_of(one.datatype), copy=False)
        return found

    def warm_up(self) -> tuple[tuple[int, int], ...]:
        """(batch size, microseconds) of batches of zeros of 1, 2, 4, … items; the slowest of three runs after a first one. Raises
        whatever the model raises."""
        samples = []
        size, most = 1, max(1, self.signature.max_batch)
        while True:
            arrays = self._zeros(size)
            self._answers([arrays])
            samples.append((size, max(_timed(lambda arrays=arrays: self._answers([arrays])) for _ in range(_REPEATS))))  # type: ignore[misc]
            if size == most:
                return tuple(samples)
            size = min(most, 2 * size)

    def _zeros(self, size: int) -> Arrays:
        lead = (size,) if self.signature.batched else ()
        shapes = {one.name: (*lead, *(max(1, extent) for extent in one.shape)) for one in self.signature.inputs}
        return {
            one.name: np.full(shapes[one.name], b"", object) if one.datatype == BYTES
            else np.zeros(shapes[one.name], dtype_of(one.datatype))
            for one in self.signature.inputs
        }  # fmt: skip


def _timed(run: Callable[[], Any]) -> int:
    start = time.perf_counter_ns()
    run()
    return max(1, (time.perf_counter_ns() - start) // 1000)


def _items(arrays: Arrays) -> int:
    return int(next(iter(arrays.values())).shape[0]) if arrays else 1


def _is_module(target: Any) -> bool:
    """Whether it is a ``torch.nn.Module``, without importing torch for other callables."""
    return hasattr(target, "named_parameters") and hasattr(target, "forward")


def _of_module(module: Any) -> Callable[..., Any]:
    import torch

    module.eval()
    device = next((one.device for one in module.parameters()), torch.device("cpu"))

    def call(**arrays: Tensor) -> Any:
        # A copy: torch does not take arrays that cannot be written, as those of a received message are.
        tensors = [torch.from_numpy(array.copy()).to(device) for array in arrays.values()]
        with torch.inference_mode():
            found = module(*tensors)
        if isinstance(found, dict):
            return {name: value.cpu().numpy() for name, value in found.items()}
        if isinstance(found, (tuple, list)):
            return tuple(value.cpu().numpy() for value in found)
        return found.cpu().numpy()

    return call
