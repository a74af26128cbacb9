"""The CRIU of this machine, looked for once per process: the look takes three processes of CRIU's."""

from __future__ import annotations

import functools

from tidewright.checkpoint.criu.program import Criu, find_criu


@functools.cache
def criu_here() -> Criu | str:
    """As ``find_criu`` has it."""
    return find_criu()
