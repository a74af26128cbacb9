"""How far the program is: optimizer steps, and the samples of all ranks, in the file that ``TIDE_STEP_FILE`` names, at most once
a second.

Samples are those of batches that data loaders of a known batch size have handed out where gradients are computed. A program that
writes the file itself is let be as long as its number of steps is the larger one.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
import weakref

PERIOD_S = 1.0

_counts = weakref.WeakKeyDictionary()
_state = {"steps": 0, "due": 0.0, "samples": 0, "handed_out": 0}
"""``samples``: of the steps so far; -1 once they cannot be known."""


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
        torch = sys.modules.get("torch")
        if torch is not None and torch.is_grad_enabled():
            size = getattr(getattr(self, "_index_sampler", None), "batch_size", None)
            if isinstance(size, int) and _state["samples"] >= 0:
                _state["handed_out"] += size
            else:
                _state["samples"] = -1
        return batch

    base.__next__ = following


def _stepped(optimizer, args, kwargs):
    """Of several optimizers the one with the most steps is taken for the program's progress."""
    count = _counts[optimizer] = _counts.get(optimizer, 0) + 1
    if count > _state["steps"]:
        _state["steps"] = count
        if _state["samples"] >= 0:
            _state["samples"], _state["handed_out"] = _state["samples"] + _state["handed_out"], 0
        now = time.monotonic()
        if now >= _state["due"] or now < _state["due"] - PERIOD_S:  # the clock may be another one after a move
            _state["due"] = now + PERIOD_S
            flush()


def flush():
    """Write the numbers, unless the file has more steps."""
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
    ranks = os.environ.get("WORLD_SIZE", "")
    return b"%d %d\n" % (_state["steps"], _state["samples"] * (int(ranks) if ranks.isdigit() else 1))


def _forked():
    atexit.unregister(flush)
    _state["due"] = float("inf")


os.register_at_fork(after_in_child=_forked)
