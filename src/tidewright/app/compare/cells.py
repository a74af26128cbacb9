"""From lists of options to cells, and from cells to the simulations that must be run: what cannot differ is run once."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from ...base.errors import UsageError
from ...base.units import counted
from ...model.node import NodeSpec
from ...policy.registry import make
from ...sim.clusters import load_cluster
from ...sim.comparison.cells import ANY, Cell, Settings
from ...sim.costs import OPERATIONS, RecordedCost
from ...sim.faults import parse_faults
from ...sim.run import Options
from ...sim.trace import Trace, window, with_load
from ..simulate import Question, load_trace_of, options_of, seeded_trace, shaped, sigma
from .bounds import check_size

AS_IS = "trace"
"""What ``--loads`` and ``--tiers`` call the trace's own."""
OF_PROFILE = "profile"
"""What ``--costs`` calls those of the profile."""
NONE = "none"
"""What ``--faults`` calls no faults."""

TIERS = {"1": "standard:1", "3": "premium:0.2/standard:0.3/basic:0.5"}
"""Short words for ``--tiers``: every job standard, or three tiers."""
ESTIMATES = {"noisy": "1"}
"""Of ``--estimates``: a log-normal error of this sigma."""
COSTS = {"1s": "save=1s,restore=0.5s", "60s": "save=60s,restore=60s"}
"""Of ``--costs``: small images, and large ones."""

_SHORT = {"tiers": TIERS, "estimates": ESTIMATES, "costs": COSTS}


class ComparisonQuestion(Struct, frozen=True, kw_only=True):
    """What to compare, in the words of ``tide compare``; a cell is every combination. A load of None: as the trace has it.

    ``windows`` above 1: replicates are that many parts of the trace's jobs instead of seeds.
    """

    traces: tuple[str, ...]
    policies: tuple[str, ...]
    clusters: tuple[str, ...] = ("philly-480",)
    loads: tuple[float | None, ...] = (None,)
    seeds: tuple[int, ...] = (1,)
    windows: int = 1
    tiers: tuple[str, ...] = ("",)
    estimates: tuple[str, ...] = ("exact",)
    profiles: tuple[str, ...] = ("default",)
    costs: tuple[str, ...] = ("",)
    faults: tuple[str, ...] = ("",)
    jobs: int = 0
    rates: str = ""
    checkpoints: bool | None = None
    horizon: str = ""


class PlannedCell(Struct, frozen=True, kw_only=True):
    """A cell and the simulation that answers it; several cells may share one."""

    cell: Cell
    question: Question


def planned(asked: ComparisonQuestion) -> tuple[list[PlannedCell], list[str]]:
    """Every cell in the order of the options, and remarks. Raises UsageError, before any run, where one of them could not be."""
    asked, lists, remarks = _without_repeats(asked)
    check_size({**lists, "windows": range(asked.windows)})
    if asked.windows > 1 and len(asked.seeds) > 1:
        raise UsageError(
            f"{asked.windows} windows and {len(asked.seeds)} seeds: replicates are either",
            "give --windows or several --seeds",
        )
    reads = {name: bool(getattr(make(name), "reads_estimates", True)) for name in asked.policies}
    cells = []
    for trace, cluster in itertools.product(asked.traces, asked.clusters):
        nodes = load_cluster(cluster)
        loaded = _checked_trace(asked, trace, cluster, nodes)
        for load in asked.loads:
            if load is not None:
                with_load(loaded, load, sum(node.devices for node in nodes))
        axes = itertools.product(asked.loads, asked.tiers, asked.estimates, asked.profiles, asked.costs, asked.faults)
        for load, tiers, estimates, profile, costs, faults in axes:
            question = Question(
                trace=trace, cluster=cluster, policy="", seed=asked.seeds[0], jobs=asked.jobs, load=load,
                tiers=TIERS.get(tiers, tiers), estimates=ESTIMATES.get(estimates, estimates), profile=profile,
                costs=COSTS.get(costs, costs), rates=asked.rates, faults=faults, checkpoints=asked.checkpoints,
                horizon=asked.horizon,
            )  # fmt: skip
            settings = _settings(trace, cluster, load, tiers, estimates, profile, costs, faults)
            cells += _replicates(asked, question, settings, reads)
    return cells, remarks + _about_replicates(cells, asked)


def _without_repeats(asked: ComparisonQuestion) -> tuple[ComparisonQuestion, dict[str, tuple[Any, ...]], list[str]]:
    """Values that are given twice count once, with a remark; an empty list is an error. The lists are returned by name, too."""
    remarks, changes = [], dict[str, tuple[Any, ...]]()
    for field in asked.__struct_fields__:
        values = getattr(asked, field)
        if not isinstance(values, tuple):
            continue
        if not values:
            raise UsageError(f"no {field} named", "give at least one, or leave the option out; see tide compare --help")
        changes[field] = tuple(dict.fromkeys(values))
        twice = [value for value, count in Counter(values).items() if count > 1]
        remarks += [f"{field}: {value} is given more than once and counts once" for value in twice]
    return msgspec.structs.replace(asked, **changes), changes, remarks


def _checked_trace(asked: ComparisonQuestion, trace: str, cluster: str, nodes: tuple[NodeSpec, ...]) -> Trace:
    """The trace, cut as asked, after a look at every option of its cells."""
    first = Question(
        trace=trace, cluster=cluster, policy="", seed=asked.seeds[0], jobs=asked.jobs, horizon=asked.horizon
    )  # fmt: skip
    options_of(first)
    whole = load_trace_of(first, nodes)
    loaded = shaped(whole, first, nodes)
    if asked.windows > 1 and len(loaded) < 2 * asked.windows:
        raise UsageError(
            f"{trace}: {counted(len(loaded), 'job')}, too few for {asked.windows} windows", "give fewer --windows"
        )
    for field, values in (
        ("tiers", asked.tiers), ("estimates", asked.estimates), ("profile", asked.profiles), ("costs", asked.costs),
        ("faults", asked.faults),
    ):  # fmt: skip
        for value in values:
            meant = _SHORT.get(field, {}).get(value, value)
            question = msgspec.structs.replace(first, rates=asked.rates, **{field: meant})
            options_of(question)
            if field in ("tiers", "estimates"):
                shaped(loaded, msgspec.structs.replace(question, jobs=0), nodes)
    return window(loaded, 1, asked.windows)


def _replicates(
    asked: ComparisonQuestion, question: Question, settings: Settings, reads: dict[str, bool]
) -> list[PlannedCell]:
    """The cells of one group."""
    draws = _draws(question, options_of(question))
    cells = []
    for policy in asked.policies:
        mine = msgspec.structs.replace(question, policy=policy)
        if not reads[policy]:
            mine = msgspec.structs.replace(mine, estimates="exact")
        noisy = mine.estimates not in ("exact", "none") and sigma(mine.estimates) > 0
        if asked.windows > 1:
            found = [
                (f"window {at}/{asked.windows}", _in_window(mine, at, asked.windows))
                for at in range(1, asked.windows + 1)
            ]
        elif len(asked.seeds) > 1 and not (draws or noisy):
            found = [(ANY, mine)]
        else:
            found = [(f"seed {seed}", msgspec.structs.replace(mine, seed=seed)) for seed in asked.seeds]
        cells += [
            PlannedCell(cell=Cell(settings=settings, policy=policy, replicate=name), question=each)
            for name, each in found
        ]
    return cells


def _in_window(question: Question, at: int, of: int) -> Question:
    return msgspec.structs.replace(question, window=f"{at}/{of}")


def _settings(
    trace: str, cluster: str, load: float | None, tiers: str, estimates: str, profile: str, costs: str, faults: str
) -> Settings:
    return (
        ("trace", trace), ("cluster", cluster), ("load", "as the trace has it" if load is None else f"{load:g}"),
        ("tiers", tiers or "of the trace"), ("estimates", estimates), ("profile", profile), ("costs", costs or "of the profile"),
        ("faults", faults or "none"),
    )  # fmt: skip


def _draws(question: Question, options: Options) -> bool:
    """Whether anything but the noise of estimates is drawn by the seed."""
    charged = options.charged
    recorded = any(isinstance(getattr(charged, f"{name}_us"), RecordedCost) for name in OPERATIONS)
    own = options.profile.seed != question.seed  # the profile's text gives one
    return bool(
        len([part for part in question.tiers.split("/") if part]) > 1
        or seeded_trace(question.trace, 1) != question.trace
        or (parse_faults(question.faults, question.seed).any and "seed=" not in question.faults)
        or ((recorded or options.profile.ties == "shuffled") and not own)
    )


def _about_replicates(cells: list[PlannedCell], asked: ComparisonQuestion) -> list[str]:
    """A remark on intervals that there cannot be: of one seed, and of cells that no seed changes."""
    if len(asked.seeds) == 1:
        return [] if asked.windows > 1 else ["one seed: there are no intervals; --seeds 3 runs every cell with three"]
    alone = [cell for cell in cells if cell.cell.replicate == ANY]
    if not alone:
        return []
    names = list(dict.fromkeys(cell.cell.policy for cell in alone))
    whose = "any cell" if len(alone) == len(cells) else f"some cells of {', '.join(names)}"
    return [
        f"nothing in {whose} depends on the seed (tiers, noise of estimates, faults and recorded costs do): "
        f"run once instead of {len(asked.seeds)} times, without an interval; --windows N gives replicates of the trace itself"
    ]


def command_of(question: Question) -> str:
    """The ``tide simulate`` that runs one cell alone."""
    words = ["tide", "simulate", "-t", question.trace, "-c", question.cluster, "-p", question.policy]
    defaults = Question(trace="", cluster="", policy="")
    for field, write in _WRITTEN.items():
        value = getattr(question, field)
        if value != getattr(defaults, field):
            words += write(value)
    return shlex.join(words)


def _option(name: str) -> Callable[[object], list[str]]:
    return lambda value: [name, f"{value:g}" if isinstance(value, float) else str(value)]


_WRITTEN: dict[str, Callable[..., list[str]]] = {
    **{
        name: _option(f"--{name}")
        for name in ("jobs", "window", "seed", "load", "tiers", "estimates", "profile", "costs", "rates", "faults", "horizon")
    },
    "checkpoints": lambda value: ["--checkpoints" if value else "--no-checkpoints"],
}  # fmt: skip


def command_of_comparison(asked: ComparisonQuestion) -> str:
    """The ``tide compare`` that asks the same again."""
    words = ["tide", "compare", *_repeated("-t", asked.traces, "")]
    for option, values, empty, default in (
        ("-c", asked.clusters, "", "philly-480"), ("--profile", asked.profiles, "", "default"),
        ("--costs", asked.costs, OF_PROFILE, ""), ("--faults", asked.faults, NONE, ""),
    ):  # fmt: skip
        words += _repeated(option, values, empty) if values != (default,) else []
    words += ["-p", ",".join(asked.policies)]
    loads = tuple(AS_IS if load is None else f"{load:g}" for load in asked.loads)
    words += ["--loads", ",".join(loads)] if loads != (AS_IS,) else []
    words += _seeds_again(asked.seeds)
    words += ["--tiers", ",".join(tiers or AS_IS for tiers in asked.tiers)] if asked.tiers != ("",) else []
    words += ["--estimates", ",".join(asked.estimates)] if asked.estimates != ("exact",) else []
    words += ["--windows", str(asked.windows)] if asked.windows > 1 else []
    words += ["--jobs", str(asked.jobs)] if asked.jobs else []
    words += ["--rates", asked.rates] if asked.rates else []
    words += ["--horizon", asked.horizon] if asked.horizon else []
    if asked.checkpoints is not None:
        words.append("--checkpoints" if asked.checkpoints else "--no-checkpoints")
    return shlex.join(words)


def _repeated(option: str, values: Iterable[str], empty: str) -> list[str]:
    return [word for value in values for word in (option, value or empty)]


def _seeds_again(seeds: tuple[int, ...]) -> list[str]:
    if seeds == (1,):
        return []
    if seeds == tuple(range(1, len(seeds) + 1)):
        return ["--seeds", str(len(seeds))]
    return ["--seeds", ",".join(map(str, seeds)) if len(seeds) > 1 else f"{seeds[0]}-{seeds[0]}"]
