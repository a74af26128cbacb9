"""One job, an array or a sweep: from a spec and its indices to the specs that are submitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import PurePath

from msgspec.structs import replace

from ...base.errors import UsageError
from ...base.ids import valid_name
from ...model.job import ArrayMember, JobSpec
from ...wire.array_refs import MAX_MEMBERS

INDEX_VARIABLE = "ARRAY_INDEX"
"""A member's own index, in its environment."""


def array(spec: JobSpec, indices: tuple[int, ...], limit: int, fill: bool = True) -> list[JobSpec]:
    """One member per index, named ``name[index]``; each finds its index in ARRAY_INDEX, and as ``{index}`` with ``fill``."""
    parent = parent_name(spec)
    return [
        _member(
            spec,
            parent,
            index,
            len(indices),
            limit,
            {"index": str(index)} if fill else {},
            {INDEX_VARIABLE: str(index)},
        )
        for index in indices
    ]


def sweep(spec: JobSpec, axes: Mapping[str, tuple[str, ...]], limit: int) -> list[JobSpec]:
    """One member per combination of the axes' values, in order, the last axis fastest.

    A member finds its values as environment variables, and ``{name}`` of its command and output is replaced.
    """
    size = 1
    for values in axes.values():
        size *= len(values)
        if size > MAX_MEMBERS:
            raise UsageError(f"the sweep has more than {MAX_MEMBERS} members", "leave out some values")
    parent = parent_name(spec)
    members = []
    for index, values in enumerate(product(*axes.values())):
        chosen = dict(zip(axes, values, strict=True))
        members.append(_member(spec, parent, index, size, limit, chosen, {**chosen, INDEX_VARIABLE: str(index)}))
    return members


def parent_name(spec: JobSpec) -> str:
    """The spec's name, else one made from its command."""
    return spec.name or command_name(spec.command)


def command_name(command: tuple[str, ...]) -> str:
    """A name for a job without one: the script of ``python script.py``, else the program, else "job"."""
    program = PurePath(command[0]).name if command else "job"
    if program.startswith(("python", "bash", "sh", "torchrun")):
        script = next((word for word in command[1:] if word.endswith((".py", ".sh"))), "")
        program = PurePath(script).stem or program
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", program).strip("-._")[:100]
    return name if valid_name(name) and not name.isdigit() else "job"


def _member(
    spec: JobSpec, parent: str, index: int, size: int, limit: int, words: Mapping[str, str], env: Mapping[str, str]
) -> JobSpec:
    return replace(
        spec,
        name=f"{parent}[{index}]",
        command=tuple(_filled(word, words) for word in spec.command),
        output=_filled(spec.output, words),
        env={**spec.env, **env},
        array=ArrayMember(parent, index, size, limit),
    )


def _filled(text: str, words: Mapping[str, str]) -> str:
    """``{name}`` replaced; ``${name}`` is left for the shell, which finds the same value in the environment."""
    if "{" not in text:
        return text
    return re.sub(r"(?<!\$)\{(\w+)\}", lambda match: words.get(match[1], match[0]), text)
