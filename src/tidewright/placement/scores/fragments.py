"""Fragmentation after FGD (Weng et al., ATC'23, section 3): free units that the pods which usually come cannot use. Pure.

A node's free units are lost to a pod that lacks devices there, and as well to one that lacks CPU or needs another kind. Numbers
are exact when the shares of typical pods are whole numbers (counts), whatever the order in which they are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .columns import Floats, Ints, Mask, ShareRequest

AT_ONCE = 12_000
"""Numbers in each array of the work, 96 kB: malloc gives pieces from 128 kB on back to the system each time."""
_FAR = np.iinfo(np.int64).max


class TypicalColumns(NamedTuple):
    """Typical pods, sorted into groups with the same units and number of devices. T pods in Q groups."""

    units: Ints
    """[Q, 1, 1] per device."""
    devices: Ints
    """[Q, 1] how many."""
    starts: Ints
    """[Q] first pod of each group."""
    cpu: Ints
    """[T, 1] millicores."""
    kinds: Ints
    """[T, 1] as in ShareRequest."""
    share: Floats
    """[T, 1] how often each comes."""
    total: float
    """Sum of the shares, pods without devices included: to these, all that is free is lost."""
    limited: bool
    """Whether any pod needs a certain kind."""


def typical_columns(pods: Sequence[tuple[ShareRequest, float]]) -> TypicalColumns:
    """Requests and how often each comes, as columns."""
    total = float(sum(share for _, share in pods))
    needing = sorted(
        ((one, share) for one, share in pods if one.devices), key=lambda pod: (pod[0].units, pod[0].devices)
    )
    groups = [(one.units, one.devices) for one, _ in needing]
    starts = [at for at, group in enumerate(groups) if not at or group != groups[at - 1]]
    units, devices = np.array([groups[at] for at in starts], dtype=np.int64).reshape(-1, 2).T
    cpu, kinds = np.array([(one.cpu, one.kinds) for one, _ in needing], dtype=np.int64).reshape(-1, 2).T
    share = np.array([share for _, share in needing], dtype=np.float64)
    return TypicalColumns(
        units[:, None, None], devices[:, None], np.array(starts, dtype=np.int64), cpu[:, None], kinds[:, None], share[:, None],
        total, bool(kinds.any()),
    )  # fmt: skip


def _weights(typical: TypicalColumns, cpu: Ints, kind: Ints | None) -> Floats:
    """[Q, N] the share of each group that has enough CPU on a node, and whose kind it is."""
    can: Mask = cpu >= typical.cpu
    if typical.limited and kind is not None:
        can &= (typical.kinds == 0) | ((typical.kinds >> kind) & 1 == 1)
    if not len(typical.starts):
        return np.zeros((0, len(cpu)))
    found: Floats = np.add.reduceat(can * typical.share, typical.starts, axis=0)
    return found


def _columns(free: Ints) -> tuple[Ints, Floats]:
    """``free`` with nodes last, as sums over few devices that lie beside each other are slow; and what of it is usable."""
    turned = np.ascontiguousarray(free.T)
    return turned, np.maximum(turned, 0).astype(np.float64)


def fragmentation(free: Ints, cpu: Ints, typical: TypicalColumns, kind: Ints | None = None) -> Floats:
    """F of each node (section 3.2): units of ``free[N, G]`` that a typical pod cannot use, by how often it comes."""
    turned, usable = _columns(free)
    enough = turned >= typical.units
    used = np.where(enough, usable, 0.0).sum(axis=1)
    weights = _weights(typical, cpu, kind) * (enough.sum(axis=1) >= typical.devices)
    found: Floats = typical.total * usable.sum(axis=0) - _over_groups("qn,qn->n", weights, used)
    return found


def growth(free: Ints, cpu: Ints, request: ShareRequest, typical: TypicalColumns, kind: Ints | None = None) -> Floats:
    """By how much F grows with ``request``: [N, G] for one device, as each of them is taken, else [N, 1] for the fullest that
    have enough. Infinite where they do not."""
    step = max(1, AT_ONCE // (max(1, len(typical.starts)) * max(1, free.shape[1])))
    work = growth_of_one if request.devices == 1 else growth_of_several
    if len(free) <= step:
        return work(free, cpu, request, typical, kind)
    parts = [slice(at, at + step) for at in range(0, len(free), step)]
    return np.concatenate(
        [work(free[part], cpu[part], request, typical, None if kind is None else kind[part]) for part in parts]
    )


def growth_of_several(
    free: Ints, cpu: Ints, request: ShareRequest, typical: TypicalColumns, kind: Ints | None
) -> Floats:
    """[N, 1] for requests of several devices, or none."""
    enough = free >= request.units
    # The fullest devices that have enough, as ``columns.fullest`` takes them.
    order = np.argsort(np.where(enough, free, _FAR), axis=1, kind="stable")
    taken = enough & (np.argsort(order, axis=1, kind="stable") < request.devices)
    after = fragmentation(free - request.units * taken, cpu - request.cpu, typical, kind)
    grown = after - fragmentation(free, cpu, typical, kind)
    found: Floats = np.where(enough.sum(axis=1) >= request.devices, grown, np.inf)
    return found[:, None]


def growth_of_one(free: Ints, cpu: Ints, request: ShareRequest, typical: TypicalColumns, kind: Ints | None) -> Floats:
    """[N, G] for requests of one device. Only that device of a node changes, so what all of them come to is worked out once."""
    units = request.units
    turned, usable = _columns(free)
    before, still = turned >= typical.units, turned >= typical.units + units
    here = np.where(before, usable, 0.0)
    fitting, used = before.sum(axis=1), here.sum(axis=1)
    weights = _weights(typical, cpu, kind) * (fitting >= typical.devices)
    now = _over_groups("qn,qn->n", weights, used)
    # A typical pod that needs all devices that fit it now needs this one to fit it afterwards.
    fits_then = still | ~before | (fitting > typical.devices)[:, None]
    left = fits_then * (used[:, None] - np.where(still, float(units), here))
    then = _weights(typical, cpu - request.cpu, kind) * (fitting >= typical.devices)
    grown = (now - units * typical.total - _over_groups("qn,qgn->gn", then, left)).T
    found: Floats = np.where(free >= units, grown, np.inf)
    return found


def _over_groups(how: str, weights: Floats, values: NDArray[Any]) -> Floats:
    """No matrix product: that starts threads, which here cost more than they do."""
    found: Floats = np.einsum(how, weights, values)
    return found


def hundredths(grown: Floats, size: Ints | int) -> Floats:
    """The score that FGD's scheduler gives: whole hundredths of a sigmoid of minus the growth, in devices of ``size`` units."""
    found: Floats = np.floor(100 / (1 + np.exp(np.clip(grown / np.maximum(size, 1), -50, 50))))
    return found
