"""What a program holds of an operation under way. The operation's own object, which would keep connections open, is
behind it and can be taken away."""

from __future__ import annotations

import contextlib

import torch.distributed as dist

from . import page as pg
from . import splice
from .process_control import control


class Work(dist.Work):
    """A collective, and what else must be complete at a cut. Once complete it refers to no connection."""

    def __init__(self, inner, group, number):
        super().__init__()
        self._inner = inner
        self._group = group
        self._number = number
        self._future = None
        self._error = None

    def wait(self, timeout=None):
        """As torch's Work."""
        inner = self._inner
        if inner is None:
            return self._outcome()
        waiting = self._group.at + pg.WAITING
        control.words[waiting] = self._number
        splice.release()
        try:
            done = inner.wait(timeout) if timeout else inner.wait()
        except RuntimeError as error:
            self._error = error
            raise
        finally:
            splice.acquire()
            control.words[waiting] = 0
            self._group.kept.discard(self)
            if self._error is not None or not self._group.queued:
                self.detach(inner)
        return done

    def _outcome(self):
        if self._error is not None:
            raise self._error
        return True

    def settled(self):
        """Whether it is complete. It refers to no connection then."""
        inner = self._inner
        if inner is None:
            return True
        if not inner.is_completed():
            return False
        if self._error is None:
            self._error = _error_of(inner)
        self.detach(inner)
        return True

    def detach(self, inner):
        """Keep the result, release the rest."""
        if self._future is None:
            with contextlib.suppress(RuntimeError):
                self._future = inner.get_future()
        self._inner = None
        self._group.live.discard(self)

    def get_future(self):
        """As torch's Work. A future knows its values and nothing of connections."""
        inner = self._inner
        if self._future is None and inner is not None:
            self._future = inner.get_future()
        if self._future is None:
            raise RuntimeError("this operation has no future")
        return self._future

    def is_completed(self):
        """As torch's Work."""
        return self.settled()

    def is_success(self):
        """As torch's Work."""
        return self.settled() and self._error is None

    def exception(self):
        """As torch's Work."""
        self.settled()
        return self._error

    def result(self):
        """As torch's Work."""
        inner = self._inner
        return inner.result() if inner is not None else self.get_future().value()

    def synchronize(self):
        """As torch's Work."""
        inner = self._inner
        if inner is not None:
            inner.synchronize()

    def block_current_stream(self):
        """As torch's Work."""
        inner = self._inner
        if inner is not None:
            inner.block_current_stream()

    def source_rank(self):
        """As torch's Work: of a receive only."""
        raise RuntimeError("sourceRank() may only be called on work objects that correspond to a recv call.")

    _source_rank = source_rank


def _error_of(inner):
    try:
        inner.wait()
    except RuntimeError as error:
        return error
    return None
