"""Which pods of a node to preempt so that a pod fits on one of its GPUs, or on several. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..objects.pod_request import GpuAssignment, PodRequest


def spare_victims(free: dict[int, int], held: GpuAssignment | None) -> None:
    """Add what a pod holds to the free units by GPU; GPUs that are not usable stay so."""
    for gpu, units in (held.units if held else {}).items():
        if gpu in free:
            free[gpu] += units


def cheapest_victims(ask: PodRequest, free: dict[int, int], lower: Sequence[GpuAssignment]) -> list[str] | None:
    """Uids of ``lower`` (all may be preempted) to add until ``count`` GPUs have ``units`` free; None when it cannot be.

    As in kube-scheduler, sets are compared by their highest priority, then the sum of priorities, then their number. GPU by
    GPU the cheapest set is taken, which is exact for one GPU. ``free`` is changed.
    """
    gone: list[str] = []
    while True:
        done = {gpu for gpu, units in free.items() if units >= ask.units}
        if len(done) >= ask.count:
            return gone
        left = [held for held in lower if held.uid not in gone]
        sets = [(found, gpu) for gpu in free if gpu not in done and (found := _set_for(ask, gpu, free[gpu], left))]
        if not sets:
            return None
        chosen, _ = min(sets, key=lambda pair: (*_cost(pair[0]), pair[1]))
        for held in chosen:
            gone.append(held.uid)
            spare_victims(free, held)


def _set_for(ask: PodRequest, gpu: int, free: int, lower: Sequence[GpuAssignment]) -> list[GpuAssignment]:
    """Who must leave one GPU: the lowest priorities until there is room, then those that were not needed stay."""
    here = sorted(
        (held for held in lower if held.units.get(gpu)), key=lambda held: (held.priority, -held.units[gpu], held.uid)
    )
    chosen: list[GpuAssignment] = []
    for held in here:
        if free >= ask.units:
            break
        chosen.append(held)
        free += held.units[gpu]
    if free < ask.units:
        return []
    for held in sorted(chosen, key=lambda held: (-held.priority, held.units[gpu], held.uid)):
        if free - held.units[gpu] >= ask.units:
            chosen.remove(held)
            free -= held.units[gpu]
    return chosen


def _cost(victims: Sequence[GpuAssignment]) -> tuple[int, int, int, int]:
    priorities = [held.priority for held in victims]
    return max(priorities), sum(priorities), len(victims), sum(sum(held.units.values()) for held in victims)
