"""How far the program is: optimizer steps, and the samples of all ranks, in the file that ``TIDE_STEP_FILE`` names, at most once
a second.

Samples of a step are those of the batches, as they are, that the data loader which was asked last has handed out since the step
before. Batches of other loaders (an evaluation between two steps) are none of it. A program that writes the file itself is let be
as long as its number of steps is the larger one.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
import weakref
from collections.abc import Mapping

PERIOD_S = 1.0

_counts = weakref.WeakKeyDictionary()
_state = {"steps": 0, "due": 0.0, "samples": 0, "loader": None, "handed_out": 0, "quiet": False}
"""``samples``: of the steps so far; -1 once they cannot be known. ``loader``: what was asked for a batch last, a weak reference,
and what it has ``handed_out`` since the last step; -1 where that cannot be known. ``quiet``: in a forked child, which counts
nothing that its parent's file is about."""
_ITERABLE = 1
"""torch.utils.data's _DatasetKind.Iterable."""


def watch(module):
    """Count the steps of every optimizer; torch.optim.optimizer has a hook for all of them since 2.0."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None and os.environ.get("TIDE_STEP_FILE"):
        register(_stepped)
        atexit.register(flush)


def watch_batches(module):
    """Count what data loaders hand out; torch.utils.data.dataloader has one iterator class for all of them."""
    base = getattr(module, "_BaseDataLoaderIter", None)
    if base is None or not os.environ.get("TIDE_STEP_FILE"):
        return
    original = base.__next__

    @functools.wraps(original)
    def following(self):
        batch = original(self)
        try:
            _hand_out(self, batch)
        except Exception:  # what a program's own classes raise here must not end its training
            _state["samples"] = -1
        return batch

    base.__next__ = following


def _hand_out(iterator, batch):
    torch = sys.modules.get("torch")
    if torch is None or _state["samples"] < 0 or not torch.is_grad_enabled():
        return
    loader = _state["loader"]
    if loader is None or loader() is not iterator:
        _state["loader"], _state["handed_out"] = weakref.ref(iterator), 0
    if _state["handed_out"] >= 0:
        size = _samples(iterator, batch, torch.Tensor)
        _state["handed_out"] = -1 if size is None else _state["handed_out"] + size


def _samples(iterator, batch, tensor):
    """The length of a batch's first tensor. None where the loader does not make batches of its samples (what it hands out may be
    one sample), or where accelerate may have one rank read those of all."""
    if not getattr(iterator, "_auto_collation", False):
        return None
    if getattr(iterator, "_dataset_kind", None) == _ITERABLE and "accelerate" in sys.modules and _ranks() > 1:
        return None
    found = _first(batch, tensor, 3)
    return None if found is None or not found.ndim else int(found.shape[0])


def _first(batch, tensor, depth):
    if isinstance(batch, tensor):
        return batch
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if not isinstance(batch, (tuple, list)) or not depth:
        return None
    return next((found for one in batch[:8] if (found := _first(one, tensor, depth - 1)) is not None), None)


def _stepped(optimizer, args, kwargs):
    """Of several optimizers the one with the most steps is taken for the program's progress."""
    count = _counts[optimizer] = _counts.get(optimizer, 0) + 1
    if count > _state["steps"]:
        _state["steps"] = count
        _count_samples()
        now = time.monotonic()
        if now >= _state["due"] or now < _state["due"] - PERIOD_S:  # the clock may be another one after a move
            _state["due"] = now + PERIOD_S
            flush()


def _count_samples():
    handed_out = _state["handed_out"]
    if _state["samples"] >= 0:
        _state["samples"] = -1 if handed_out < 0 else _state["samples"] + handed_out
    _state["handed_out"] = 0


def flush():
    """Write the numbers, unless the file has more steps."""
    if _state["quiet"]:
        return
    try:
        file = os.open(os.environ["TIDE_STEP_FILE"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError:
        return
    try:
        words = os.pread(file, 64, 0).split()
        if not words or (all(map(bytes.isdigit, words[:2])) and int(words[0]) < _state["steps"]):
            os.ftruncate(file, os.pwrite(file, _line(), 0))
    except OSError:
        pass
    finally:
        os.close(file)


def _line():
    if _state["samples"] <= 0:
        return b"%d\n" % _state["steps"]
    return b"%d %d\n" % (_state["steps"], _state["samples"] * _ranks())


def _ranks():
    ranks = os.environ.get("WORLD_SIZE", "")
    return int(ranks) if ranks.isdigit() else 1


def _forked():
    atexit.unregister(flush)
    _state["quiet"] = True


os.register_at_fork(after_in_child=_forked)
