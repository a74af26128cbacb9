"""Kernels of the device model: a grid of CTAs, how many of them one SM holds, and how long one takes by how full its SM is.

Made from profiles in the form of REEF's (microseconds on an MI50), scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..padding.nvidia_rule import Roofline
from ..padding.reef_models import REEF_UNITS, ProfiledKernel, ProfiledModel

SM_CAPACITY = 720_720
"""Units of one SM: divisible by every occupancy up to 16, and to within 0.01 % by those up to 32."""


@dataclass(frozen=True, slots=True)
class CtaKernel:
    """``cta_ns[j]``: nanoseconds of one CTA while its SM is filled as if by j + 1 CTAs of this kernel.

    ``profile`` is where it comes from, and ``alone_ns`` the whole kernel's time on the idle device of that profile.
    """

    name: str
    blocks: int
    cta_ns: tuple[int, ...]
    bound: Roofline = Roofline.UNKNOWN
    profile: ProfiledKernel | None = None
    alone_ns: int = 0

    @property
    def occupancy(self) -> int:
        return len(self.cta_ns)

    @property
    def size(self) -> int:
        """What one CTA takes of ``SM_CAPACITY``."""
        return SM_CAPACITY // len(self.cta_ns)


@dataclass(frozen=True, slots=True)
class KernelChain:
    """The kernels of one inference, in stream order."""

    name: str
    kernels: tuple[CtaKernel, ...]


def profiled_chain(
    model: ProfiledModel,
    *,
    node_start_ns: int,
    scale: float = 1.0,
    units: int = REEF_UNITS,
    floor_ns: int = 1_000,
) -> KernelChain:
    """A chain of REEF's profile. ``scale`` multiplies all times: below 1 for a faster device.

    What launching one by one added to each kernel's latency is taken off, and so is the start of a node, which the model adds.
    Each kernel's times are then adjusted together, so that alone on the ``units`` of the profile it takes its latency there.
    """
    off = model.launch_overhead_us * 1000 * scale + node_start_ns

    def nanoseconds(us: int) -> float:
        return max(us * 1000 * scale - off, floor_ns)

    def made(kernel: ProfiledKernel) -> CtaKernel:
        times = [nanoseconds(us) for us in kernel.latency_us]
        whole = nanoseconds(kernel.total_us)
        factor = min(max(whole / _alone(kernel.blocks, times, units), 1 / _ADJUSTED), _ADJUSTED)
        adjusted = tuple(max(round(time * factor), floor_ns) for time in times)
        alone = round(_alone(kernel.blocks, adjusted, units))
        return CtaKernel(kernel.name, kernel.blocks, adjusted, _guess(kernel), kernel, alone)

    # Equal kernels of a graph are one object.
    kernels = {kernel: made(kernel) for kernel in model.kernels}
    return KernelChain(model.name, tuple(kernels[kernel] for kernel in model.kernels))


_ADJUSTED = 4.0
"""The most by which times are adjusted: some kernels hold one-time costs (densenet's first: 660 us, its waves add up to 60)."""


def _alone(blocks: int, times: Sequence[float], units: int) -> float:
    """The time of a kernel alone: full waves, then one with what is left spread evenly."""
    waves, rest = divmod(blocks, units * len(times))
    return waves * times[-1] + (times[-(-rest // units) - 1] if rest else 0.0)


def _guess(kernel: ProfiledKernel) -> Roofline:
    # No counters are published. Convolutions and products compute; what remains in these graphs moves data.
    computing = ("conv2d", "dense", "matmul", "winograd")
    return Roofline.COMPUTE if any(word in kernel.name for word in computing) else Roofline.MEMORY
