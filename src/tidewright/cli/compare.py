"""``tide compare``: policies × loads × seeds × … side by side, in worker processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..base.errors import UsageError
from . import output as out
from .files import check_files, write_file
from .progress import progress
from .simulate import horizon_option

if TYPE_CHECKING:
    from ..app.compare.cells import ComparisonQuestion

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _many(*names: str, metavar: str, text: str, required: bool = False) -> Option:
    """An option that may be repeated."""
    return click.option(*names, multiple=True, metavar=metavar, required=required, help=text)


def _list(*names: str, metavar: str, text: str, default: str) -> Option:
    """An option whose value is a list between commas."""
    return click.option(*names, metavar=metavar, default=default, show_default=True, help=text)


_MAX_WORKERS = 1_024
"""A worker is a process with a trace of its own: a large machine's worth, so that a mistyped number starts none."""
_SHAPES = ("table", "wide", "json")


@click.command("compare", short_help="Compare policies over loads, seeds and more.")
@_many("-t", "--trace", "traces", metavar="TRACE", text="As of tide simulate; may be repeated.", required=True)
@_many("-c", "--cluster", "clusters", metavar="CLUSTER", text="May be repeated.  [default: philly-480]")
@_list(
    "-p",
    "--policy",
    "--policies",
    "policies",
    metavar="NAME,...",
    default="sla,srtf,las,fifo",
    text="Policies, with settings like las:round=6m.",
)
@_list(
    "--loads",
    "--load",
    "loads",
    metavar="X,...",
    default="trace",
    text="Loads to stretch the trace to; trace: as it is.",
)
@_list(
    "--seeds",
    "seeds",
    metavar="N|LIST",
    default="1",
    text="N: seeds 1 to N, over which means and intervals are taken. Or a list: 2,5 or 4-6.",
)
@click.option(
    "--windows",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="N equal parts of the trace's jobs instead of seeds.",
)
@_list(
    "--tiers",
    metavar="TIERS,...",
    default="trace",
    text="trace: the trace's own; 1: all standard; 3: premium:0.2/standard:0.3/basic:0.5; or other shares like these.",
)
@_list(
    "--estimates",
    metavar="ESTIMATES,...",
    default="exact",
    text="Run times that policies get: exact, noisy (log-normal, sigma 1), none, or a sigma.",
)
@_many("--profile", "profiles", metavar="NAME[:KEY=VALUE,...]", text="How the cluster behaves; may be repeated.")
@_many(
    "--costs",
    metavar="COSTS,...",
    text="What operations take. 1s: a save takes 1s, a restore 0.5s; 60s: each takes 60s; profile: the profile's; or costs as "
    "of tide simulate, of which several are several options.",
)
@_many("--faults", metavar="NAME=VALUE,...", text="What fails, or none; may be repeated.")
@click.option("-n", "--jobs", type=click.IntRange(min=1), metavar="N", help="Only the first N jobs of each trace.")
@click.option(
    "--checkpoints/--no-checkpoints",
    default=None,
    help="Image running jobs now and then  [default: when nodes or ranks fail].",
)
@horizon_option
@click.option("--rates", default="", metavar="NAME|FILE", help="How fast jobs run on which kind of device.")
@click.option(
    "-j",
    "--workers",
    type=click.IntRange(1, _MAX_WORKERS),
    metavar="N",
    help=f"Worker processes, at most {_MAX_WORKERS}  [default: one for each CPU].",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the result of each run in DIR; the same command goes on from there.",
)
@click.option(
    "--html",
    "--report",
    "report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write an HTML page with plots too.",
)
@click.option("-o", "--output", type=click.Choice(_SHAPES), default="table", show_default=True, help="How to print.")
@click.option("--json", "output", flag_value="json", help="The same as -o json.")
@click.pass_context  # fmt: skip
def command(
    ctx: click.Context, /, report: Path | None, save: Path | None, output: str, workers: int | None, **given: Any
) -> None:
    """Run every combination of the options that are lists, and compare the policies in each.

    \b
    tide compare -t philly:10000 -p sla,srtf,las --loads 0.8,1.0,1.2 --html out.html
    tide compare -t philly:2000 --tiers 1,3 --estimates exact,noisy,none --costs 1s,60s --save cells -j 2
    tide compare -t synthetic:jobs=2000 -c 60x8 -p sla,fifo --loads 0.8,1.2 --seeds 5 --json

    Exit code 1: some cells failed; the others are shown. See docs/compare.md.
    """
    from ..app.compare import present
    from ..app.compare.run import compare, cpus

    several = (text for name in ("traces", "clusters", "profiles", "costs") for text in given[name])
    check_files(report, option="--html", reads=(*several, given["rates"]))
    asked = _question(given)
    try:
        with progress("comparing", total=1.0, lines=True) as bar:
            found = compare(asked, workers or cpus(), bar.update, save)
    except KeyboardInterrupt:
        kept = (
            f"the runs that ended are in {save}: give the same command to go on"
            if save
            else "no result is kept without --save"
        )
        out.note(f"stopped; {kept}")
        raise
    if output == "json":
        click.echo(present.as_json(found).decode())
    elif found.groups:
        columns = out.terminal_width() if sys.stdout.isatty() else 0
        for table in present.tables(found, output == "wide", columns):
            out.print_whole(table)
    for remark in present.remarks(found):
        out.note(f"note: {remark}")
    if found.groups:
        write_file(report, lambda: present.page(found).encode(), "--html")
    if found.failures:
        for line in present.failures(found):
            out.note(f"failed: {line}")
        ctx.exit(1)


def _question(given: dict[str, Any]) -> ComparisonQuestion:
    from ..app.compare.bounds import seeds_of
    from ..app.compare.cells import AS_IS, NONE, OF_PROFILE, ComparisonQuestion
    from ..app.simulate import policies

    return ComparisonQuestion(
        traces=given["traces"], clusters=given["clusters"] or ("philly-480",), policies=tuple(policies(given["policies"])),
        loads=tuple(None if word == AS_IS else _load(word) for word in _words(given["loads"], "--loads 0.8,1.2")),
        seeds=seeds_of(given["seeds"]), windows=given["windows"],
        tiers=tuple("" if word == AS_IS else word for word in _words(given["tiers"], "--tiers 1,3")),
        estimates=tuple(_words(given["estimates"], "--estimates exact,noisy,none")),
        profiles=given["profiles"] or ("default",),
        costs=tuple("" if costs == OF_PROFILE else costs for text in given["costs"] for costs in _costs(text)) or ("",),
        faults=tuple("" if faults == NONE else faults for faults in given["faults"]) or ("",),
        jobs=given["jobs"] or 0, rates=given["rates"], checkpoints=given["checkpoints"],
        horizon=given["horizon"],
    )  # fmt: skip


def _words(text: str, example: str) -> list[str]:
    """The parts between commas. Raises UsageError for a list without any."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise UsageError(f"{example.split()[0]}: an empty list", f"write e.g. {example}, or leave the option out")
    return found


def _load(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise UsageError(
            f"load {word!r} is not a number", "write e.g. --loads 0.8,1.2; trace: as the trace has it"
        ) from None


def _costs(text: str) -> list[str]:
    """``"1s,60s"`` is two; parts like ``save=1s`` beside each other are one."""
    found: list[str] = []
    for word in _words(text, "--costs 1s,60s"):
        if found and "=" in word and "=" in found[-1] and not found[-1].startswith("learn:"):
            found[-1] += f",{word}"
        else:
            found.append(word)
    return found
