"""Values of options with units, read by the same functions as those of a YAML spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..app.jobspec import fields
from ..base.errors import UsageError
from ..base.units import parse_bytes


class Reader(click.ParamType[Any]):
    """An option value read by one of ``app.fields``; what it refuses becomes click's own message."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except UsageError as error:
            self.fail(f"{error.message}; {error.remedy}" if error.remedy else error.message, param, ctx)


DEVICES = Reader("devices", fields.devices)
DURATION = Reader("time", fields.duration)
DURATION_OR_NONE = Reader("time", fields.duration_or_none)
LIMIT = Reader("limit", fields.limit_change)
WEIGHT = Reader("weight", fields.weight)
DEADLINE = Reader("time", fields.deadline)
DEADLINE_OR_NONE = Reader("time", fields.deadline_or_none)
JOB_NAME = Reader("name", fields.job_name)
EVERY = Reader("every", fields.every)
MEMORY = Reader("memory", fields.memory)
HOST_MEMORY = Reader("memory", fields.host_memory)
CPUS = Reader("cpus", fields.cpus)
GPU_MILLI = Reader("milli", fields.gpu_milli)
GPU_SHARE = Reader("share", fields.gpu_share)
LOG_LIMIT = Reader("memory", fields.log_limit)
IMAGE_QUOTA = Reader("memory", parse_bytes)
TYPES = Reader("types", fields.types)
VARIABLE = Reader("variable", fields.variable)
DEPENDENCY = Reader("dependency", fields.dependencies)
INDICES = Reader("indices", fields.indices)
