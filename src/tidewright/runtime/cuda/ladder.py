"""How each kernel of a chain is stopped, strongest first, chosen when a model is loaded and shown with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from .exclusion import SENTENCES, Excluded, Exclusion
from .wrapper import GatedWrapper, KernelLaunch


class GateLevel(IntEnum):
    """``CTA_GATE`` and ``PTX_GATE`` stop between CTAs and resume each exactly once. ``BOUNDED`` stops between kernels: the
    kernel is a segment of its own, submitted when everything before it is complete, and runs to its end. ``PRIORITY``
    leaves it to the stream's priority, between CTAs but at every gap again; ``SEQUENTIAL`` waits for the end of the task."""

    SEQUENTIAL = 0
    PRIORITY = 1
    BOUNDED = 2
    PTX_GATE = 3
    CTA_GATE = 4

    @property
    def code(self) -> str:
        return f"G{self.value}"


PTX_ALLOWED = frozenset({Exclusion.EXTERNAL, Exclusion.NOT_GATEABLE, Exclusion.UNSEEN_HELPER})
"""What is in the way of the gate in Triton source only. The other reasons hold for PTX as well."""


@dataclass(frozen=True, slots=True)
class DeviceAbilities:
    """Of the device and of how work reaches it: whether its streams have priorities, and whether chains are submitted in
    segments (what a process launches by itself is not)."""

    priorities: bool = True
    segments: bool = True


@dataclass(frozen=True, slots=True)
class KernelLevel:
    """A kernel of a model, how often it is launched, its level, and why it is not a higher one."""

    kernel: str
    launches: int
    level: GateLevel
    excluded: Excluded | None

    @property
    def sentence(self) -> str:
        """For people; programs read ``excluded``."""
        return f"{SENTENCES[self.excluded.reason]} ({self.excluded.where})" if self.excluded else ""


def choose(excluded: Excluded | None, *, ptx: bool = False, device: DeviceAbilities = DeviceAbilities()) -> GateLevel:
    """The highest level for a kernel that the gate's source is kept from by ``excluded``; ``ptx``: its PTX is at hand."""
    if excluded is None:
        return GateLevel.CTA_GATE
    if ptx and excluded.reason in PTX_ALLOWED:
        return GateLevel.PTX_GATE
    if device.segments:
        return GateLevel.BOUNDED
    return GateLevel.PRIORITY if device.priorities else GateLevel.SEQUENTIAL


def kernel_levels(wrapper: GatedWrapper, device: DeviceAbilities = DeviceAbilities()) -> list[KernelLevel]:
    """Each kernel that is launched, in the order of first launches."""
    by_kernel: dict[str, list[KernelLaunch]] = {}
    for launch in wrapper.launches:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    return [
        KernelLevel(kernel, len(launches), choose(launches[0].excluded, device=device), launches[0].excluded)
        for kernel, launches in by_kernel.items()
    ]


def level_lines(levels: Sequence[KernelLevel]) -> Iterator[str]:
    """What is printed at load: a line for each level, and one for each kernel below the gate, with its reason."""
    for level in sorted(GateLevel, reverse=True):
        of_level = [one for one in levels if one.level is level]
        if of_level:
            yield f"{level.code} {level.name.lower()}: {len(of_level)} kernels, {sum(one.launches for one in of_level)} launches"
    for one in levels:
        if one.excluded is not None:
            yield f"  {one.level.code} {one.kernel} x{one.launches}: {one.excluded.reason.value}: {one.sentence}"
