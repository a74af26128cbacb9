"""What a file of jobs is read with, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...model.job import JobSpec


@dataclass(frozen=True)
class Submitter:
    """Who submits from where: ``environ`` is what of their environment travels with the job."""

    environ: Mapping[str, str]
    workdir: str
    user: str = ""


@dataclass
class Loaded:
    """Specs ready to submit, and warnings for their author. ``groups`` says how many specs each document gave."""

    specs: list[JobSpec] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    after: list[tuple[str, ...]] = field(default_factory=list)
    """What the jobs of each document wait for, such as ``afterok:prep``; the controller looks it up."""
