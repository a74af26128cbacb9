"""How far the program is: optimizer steps, in the file that ``TIDE_STEP_FILE`` names, at most once a second.

A program that writes the file itself is let be as long as its number is the larger one.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref

PERIOD_S = 1.0

_counts = weakref.WeakKeyDictionary()
_state = {"steps": 0, "due": 0.0}


def watch(module):
    """Count the steps of every optimizer; torch.optim.optimizer has a hook for all of them since 2.0."""
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None and os.environ.get("TIDE_STEP_FILE"):
        register(_stepped)
        atexit.register(flush)


def _stepped(optimizer, args, kwargs):
    """Of several optimizers the one with the most steps is taken for the program's progress."""
    count = _counts[optimizer] = _counts.get(optimizer, 0) + 1
    if count > _state["steps"]:
        _state["steps"] = count
        now = time.monotonic()
        if now >= _state["due"] or now < _state["due"] - PERIOD_S:  # the clock may be another one after a move
            _state["due"] = now + PERIOD_S
            flush()


def flush():
    """Write the number, unless the file has a larger one."""
    try:
        file = os.open(os.environ["TIDE_STEP_FILE"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError:
        return
    try:
        text = os.pread(file, 64, 0).strip()
        if not text or (text.isdigit() and int(text) < _state["steps"]):
            os.pwrite(file, b"%d\n" % _state["steps"], 0)
    except OSError:
        pass
    finally:
        os.close(file)


def _forked():
    atexit.unregister(flush)
    _state["due"] = float("inf")


os.register_at_fork(after_in_child=_forked)
