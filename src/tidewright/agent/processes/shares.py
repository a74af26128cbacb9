"""The shares of this node's devices that attempts have: acquired for ranks that are to run, released when they no longer do.

Nothing of it is on disk. What an attempt has follows from its record, so that the next agent finds the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec.structs import replace

from ...base.errors import UsageError
from ...checkpoint import limits
from ...checkpoint.limits import HostLimits
from ...devices.protocol import Backend, ShareGrant, ShareMeans, Slice
from ...model.job import Level
from ...wire.agent import LaunchArgs
from .attempt import Attempt
from .rank_spec import NO_SHARE

log = logging.getLogger(__name__)


class AttemptShares:
    """``attempts`` are those on this node."""

    def __init__(self, backend: Backend, limits: HostLimits, attempts: Mapping[tuple[int, int], Attempt]) -> None:
        self._backend, self._limits, self._attempts = backend, limits, attempts

    def acquire(self, args: LaunchArgs, device: int | None = None) -> ShareGrant:
        """The share of an attempt whose ranks are to run; on ``device`` if not where ``args`` say. Raises UsageError, with what
        the attempt has unchanged, when the device has not so much left."""
        for other in list(self._attempts.values()):
            if other.key != (args.job, args.attempt):
                self.follow(other)
        wanted = slice_of(args)
        if wanted is None:
            return NO_SHARE
        return self._backend.share(wanted if device is None else replace(wanted, device=device))

    def release(self, key: tuple[int, int]) -> None:
        """The attempt has no share any more."""
        self._backend.release(holder(key))

    def follow(self, attempt: Attempt) -> None:
        """Let the attempt have what its record says, no more."""
        wanted = slice_of(attempt.args)
        if wanted is None:
            return
        if attempt.departing or attempt.over or _in_image(attempt):
            self.release(attempt.key)
            return
        present = replace(wanted, device=device_of(attempt), frozen=attempt.record.phase == "suspended")
        if present not in self._backend.shares():
            try:
                self._backend.share(present)
            except UsageError as error:  # found running, on devices that an earlier agent shared out in another way
                log.error("job %d attempt %d: %s", *attempt.key, error)

    def describe(self, grant: ShareGrant) -> str:
        """How far compute and class of a share are enforced here, in words; empty where neither was asked for."""
        kinds = [means for means in (grant.compute, grant.share_class) if means]
        lacking = limits.WEIGHTS not in self._limits.offers and any(each.needs for means in kinds for each in means)
        return "; ".join([self._strongest(means).text for means in kinds] + [self._limits.remedy] * lacking)

    def _strongest(self, means: tuple[ShareMeans, ...]) -> ShareMeans:
        return next(each for each in means if not each.needs or each.needs in self._limits.offers)


def holder(key: tuple[int, int]) -> str:
    """The name of an attempt among the holders of a device's parts."""
    return "{}.{}".format(*key)


def slice_of(args: LaunchArgs) -> Slice | None:
    """What an attempt asks for; None when it asks for no share, or shares a device through a runtime."""
    if args.beside or not (args.gpu_memory or args.gpu_milli or args.share_class == "be"):
        return None
    return Slice(
        holder=holder((args.job, args.attempt)),
        device=args.ranks[0].devices[0] if args.ranks[0].devices else 0,
        compute=args.gpu_milli,
        memory=args.gpu_memory,
        share_class=args.share_class,
        ranks=len(args.ranks),
    )


def device_of(attempt: Attempt) -> int:
    """The device that an attempt shares. Ranks that come back from images go where its latest request says; those that were only
    frozen may have been moved since."""
    record = attempt.record
    from_image = record.phase == "resuming" and record.level == Level.FULL
    devices = attempt.args.ranks[0].devices if from_image else next(iter(record.devices.values()), ())
    return devices[0] if devices else 0


def _in_image(attempt: Attempt) -> bool:
    """Whether its ranks are in full images, with nothing of them left on the device."""
    return attempt.record.phase == "suspended" and attempt.record.level == Level.FULL
