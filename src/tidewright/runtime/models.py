"""The models that a device holds: whose they are, their states, and the memory that they take. No I/O."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from ..base.errors import Bug, Conflict, NotFound, UsageError
from ..base.units import format_bytes
from .transport.messages import ModelSource
from .transport.tensors import Signature, TensorSpec


class ModelState(Enum):
    """::

    LOADING ----> READY ----> UNLOADING (its last tasks run) ----> gone
       \\-------------------------------------------------------> gone
    """

    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"


class ModelRecord(Struct):
    """``reserved_bytes`` counts against the device: an estimate while it loads, then what it takes."""

    id: int
    queue: int
    name: str
    source: ModelSource
    inputs: tuple[TensorSpec, ...]
    slots: int
    state: ModelState = ModelState.LOADING
    signature: Signature | None = None
    nbytes: int = 0
    run_ns: int = 0
    gates: int = 0
    outstanding: int = 0
    """Tasks that were submitted and have not ended."""


class ModelPool:
    """``capacity``: bytes of the device; 0: not limited."""

    MOST_MODELS = 1024
    """Of one device (REEF's model pool)."""

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.models: dict[int, ModelRecord] = {}
        self._next = 1

    @property
    def used_bytes(self) -> int:
        return sum(model.nbytes for model in self.models.values())

    def add(
        self, queue: int, name: str, source: ModelSource, inputs: tuple[TensorSpec, ...], slots: int
    ) -> ModelRecord:
        """A model begins to load. Raises UsageError where the pool or the name is taken."""
        if len(self.models) >= self.MOST_MODELS:
            raise UsageError(f"{self.MOST_MODELS} models are loaded", "unload some")
        if any(one.queue == queue and one.name == name for one in self.models.values()):
            raise Conflict(f"model {name!r} is loaded already", "unload it first, or load this one under another name")
        model = ModelRecord(self._next, queue, name, source, inputs, slots)
        self._next += 1
        self.models[model.id] = model
        return model

    def loaded(self, key: int, signature: Signature, nbytes: int, run_ns: int, gates: int) -> ModelRecord:
        """It is there. Raises UsageError, and forgets it, where the device's memory does not hold it."""
        model = self.models[key]
        if self.capacity and self.used_bytes + nbytes > self.capacity:
            free = max(0, self.capacity - self.used_bytes)
            del self.models[key]
            raise UsageError(
                f"model {model.name!r} takes {format_bytes(nbytes)}, and {format_bytes(free)} are free here",
                "unload a model, or start the runtime with more memory (--memory)",
            )
        model.state, model.signature, model.nbytes, model.run_ns, model.gates = (
            ModelState.READY,
            signature,
            nbytes,
            run_ns,
            gates,
        )
        return model

    def usable(self, queue: int, key: int, slot: int) -> ModelRecord:
        """The model of a task. Raises UsageError where this queue may not run it, or it has no such slot."""
        model = self.models.get(key)
        if model is None or model.queue != queue:
            raise NotFound(f"there is no model {key} on this queue", "load it first")
        if model.state is not ModelState.READY:
            raise Conflict(f"model {model.name!r} is {model.state.value}", "load it again")
        if not 0 <= slot < model.slots:
            raise UsageError(f"model {model.name!r} has {model.slots} slots, no slot {slot}", "use one that it has")
        return model

    def begun(self, key: int) -> None:
        """A task of it was submitted."""
        self.models[key].outstanding += 1

    def ended(self, key: int) -> bool:
        """A task of it has ended. Returns whether the model is to be dropped now: it was unloaded while busy."""
        model = self.models.get(key)
        if model is None:
            return False
        if not model.outstanding:
            raise Bug(f"model {key} has no task that could end")
        model.outstanding -= 1
        return model.state is ModelState.UNLOADING and not model.outstanding

    def unload(self, queue: int, key: int) -> bool:
        """No more tasks of it. Returns whether it can be dropped now, else when its last task ends."""
        model = self.models.get(key)
        if model is None or model.queue != queue:
            raise NotFound(f"there is no model {key} on this queue", "see 'tide runtime top' for those that are loaded")
        model.state = ModelState.UNLOADING
        return not model.outstanding

    def drop(self, key: int) -> None:
        """Forget it; its memory is free."""
        self.models.pop(key, None)

    def drop_queue(self, queue: int) -> None:
        """Its client is gone."""
        self.models = {key: model for key, model in self.models.items() if model.queue != queue}

    def of(self, queue: int) -> list[ModelRecord]:
        """The models of one queue, oldest first."""
        return [model for model in self.models.values() if model.queue == queue]
