"""How fast jobs run on which devices, read from a file or from the packaged table of Gavel.

A YAML file holds the fields of ``model.rate.RateSettings``; a CSV file has one row per throughput, with the columns workload,
kind, devices, per_s and, if placement matters, nodes; a JSON file is a table of throughputs as Gavel's simulator keeps them.
Every mistake is reported.
"""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import UsageError
from ..estimate.rates import problems
from ..model.rate import RateSettings, Throughput
from .stream import named_rows

PACKAGED = {"gavel": "gavel_throughputs.csv"}
"""Tables by name. gavel: Narayanan et al., OSDI'20, measured on V100, P100 and K80; see data/ATTRIBUTION.txt."""
_COLUMNS = ("workload", "kind", "devices", "per_s")
_REMEDY = (
    "give gavel, a CSV file with the columns workload, kind, devices, per_s and nodes, a YAML file, or Gavel's "
    "simulation_throughputs.json (docs/rates.md)"
)
_SHOWN = 10


def load_rates(text: str) -> RateSettings:
    """The rates that ``text`` names: ``gavel`` or a file. Raises UsageError with every mistake."""
    if text in PACKAGED:
        packed = files("tidewright.sim").joinpath("data", PACKAGED[text]).read_text(encoding="ascii")
        return RateSettings(throughputs=_rows(io.StringIO(packed), text))
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read rates {path}: {error.strerror}", _REMEDY) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read rates {path}: it is not text ({error.reason})", _REMEDY) from error
    if path.suffix == ".csv":
        found = RateSettings(throughputs=_rows(io.StringIO(content, newline=""), str(path)))
    elif path.suffix == ".json":
        found = RateSettings(throughputs=gavel_rows(content, str(path)))
    else:
        found = _from_yaml(content, path)
    return checked(found, str(path))


def checked(found: RateSettings, source: str) -> RateSettings:
    """The same rates. Raises UsageError with everything that is wrong with them."""
    wrong = problems(found)
    if wrong:
        raise UsageError("\n".join(f"{source}: {one}" for one in wrong[:_SHOWN]), _REMEDY)
    return found


def gavel_rows(content: str, source: str) -> tuple[Throughput, ...]:
    """Throughputs of jobs alone in Gavel's ``{kind: {"('model', devices)": {"null": steps per second}}}``. Raises UsageError.

    Rows of ``KIND_unconsolidated`` were measured with every device on a node of its own; those of one device say nothing new.
    """
    try:
        tree: dict[str, dict[str, Any]] = json.loads(content)
        found = [
            _gavel_row(name, ast.literal_eval(job), float(speeds["null"]))
            for name, jobs in tree.items()
            for job, speeds in jobs.items()
        ]
    except (ValueError, TypeError, LookupError, AttributeError, SyntaxError, RecursionError) as error:
        raise UsageError(f"{source} holds no throughputs as Gavel keeps them ({error})", _REMEDY) from error
    return tuple(row for row in found if row.nodes != 1)


def _gavel_row(name: str, job: tuple[str, int], per_s: float) -> Throughput:
    kind, apart, _ = name.partition("_unconsolidated")
    workload, devices = str(job[0]), int(job[1])
    return Throughput(workload, kind.lower(), devices, per_s, devices if apart else 0)


def _from_yaml(content: str, path: Path) -> RateSettings:
    import yaml

    from .profile import load_yaml

    try:
        found = msgspec.convert(load_yaml(content) or {}, RateSettings, strict=False)
    except (yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"cannot read rates {path}: {error}", _REMEDY) from error
    rows = tuple(msgspec.structs.replace(row, kind=row.kind.lower()) for row in found.throughputs)
    kinds = {kind.lower(): speed for kind, speed in found.kinds.items()}
    return msgspec.structs.replace(found, throughputs=rows, kinds=kinds)


def _rows(lines: Iterable[str], source: str) -> tuple[Throughput, ...]:
    found: list[Throughput] = []
    mistakes: list[str] = []
    seen: dict[tuple[str, str, int, int], int] = {}

    def wrong(line: int, text: str) -> None:
        mistakes.append(f"{source}:{line}: {text}")

    for row, line in named_rows(lines, source, _REMEDY, _COLUMNS, wrong):
        try:
            one = Throughput(
                row["workload"].strip(), row["kind"].strip().lower(), int(row["devices"]), float(row["per_s"]),
                int(row.get("nodes") or 0),
            )  # fmt: skip
        except ValueError:
            wrong(line, f"not a row of a workload, a kind and numbers: {row}")
            continue
        key = one.workload, one.kind, one.devices, one.nodes
        if key in seen:
            wrong(line, f"the same as line {seen[key]}: {', '.join(map(str, key))}")
        seen[key] = line
        found.append(one)
    if mistakes:
        raise UsageError("\n".join(mistakes[:_SHOWN]), _REMEDY)
    return tuple(found)
