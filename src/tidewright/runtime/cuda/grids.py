"""How many CTAs the launches of a wrapper have, which is how long the control block's marks must be.

Inductor computes grids when it launches, from the sizes in the call and the block sizes of the configuration that
autotuning chose. Here they are computed for every configuration that it may choose; launches need sizes that are written
out, as for models of fixed shapes.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ...base.errors import UsageError
from .cubin import imported_kernel
from .wrapper import GatedWrapper, KernelLaunch


def largest_grid(wrapper: GatedWrapper) -> int:
    """CTAs of the largest gated launch. Raises UsageError for a launch whose size is not written out."""
    return max((max(sizes) for sizes in grid_sizes(wrapper).values()), default=1)


def grid_sizes(wrapper: GatedWrapper) -> dict[int, list[int]]:
    """Index of each gated launch to its number of CTAs under each configuration of its kernel."""
    launches: dict[str, list[KernelLaunch]] = {}
    for launch in wrapper.launches:
        if launch.excluded is None:
            launches.setdefault(launch.kernel, []).append(launch)
    found: dict[int, list[int]] = {}
    for name, of_kernel in launches.items():
        with imported_kernel(name, wrapper.kernels[name].plain) as tuner:
            found |= {launch.index: _sizes(tuner, launch) for launch in of_kernel}
    return dict(sorted(found.items()))


def _sizes(tuner: Any, launch: KernelLaunch) -> list[int]:
    from torch._inductor.runtime.triton_heuristics import GridExpr, config_to_dict

    constants = {tuner.fn.arg_names[place] for place in tuner.fn.constexprs}
    names = [name for name in tuner.fn.arg_names if name not in constants]
    names += tuner.inductor_meta.get("extra_launcher_args", [])
    sizes = {name: value for name, value in zip(names, launch.arguments, strict=True) if value is not None}
    grids = [GridExpr.from_meta(tuner.inductor_meta, config) for config in tuner.configs]
    blocks = [config_to_dict(config) for config in tuner.configs]
    try:
        return [prod(grid.eval_slow(sizes | block)) for grid, block in zip(grids, blocks, strict=True)]
    except NameError as error:
        what = f"the size of launch {launch.index} ({launch.kernel}) is not fixed: {error}"
        raise UsageError(what, "compile the model for inputs of fixed shapes") from None
