"""Compare the policies on real jobs and on made-up ones, and write docs/leaderboard.md with its plots.

usage: python tools/leaderboard.py [--full] [--check] [-j N] [--save DIR]

Every load of Philly at exact run times and small images, and all run times and images at one load; --full: every combination.
Runs that ended are kept in DIR, and an interrupted run goes on from there.

--check: exit 1 unless sla keeps the most promises of made-up jobs at every load, and as many of Philly's as one tier, as they
came, by count and by work, as the best of the others less 1 point.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import Progress

from tidewright.app.compare.cells import ComparisonQuestion
from tidewright.app.compare.run import compare, cpus
from tidewright.report.figure import draw
from tidewright.sim.comparison.bar import BAR_TEXT, PROMISES, missed
from tidewright.sim.comparison.cells import ComparisonGroup
from tidewright.sim.comparison.figures import FIGURE, attainable, summary
from tidewright.sim.comparison.markdown import markdown_table
from tidewright.sim.comparison.page import PARETO_TEXT
from tidewright.sim.comparison.plots import paint_by_load, styles
from tidewright.sim.comparison.standing import pareto_statements
from tidewright.sim.comparison.table import LEGEND
from tidewright.sim.report import percent

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
JOBS = 10_000
LOADS = (None, 0.8, 1.0, 1.2, 1.5, 2.0)
"""None: as the trace has it."""
MIDDLE = (1.2,)
"""Where run times and images are varied."""
COSTS = ("1s", "60s")
PHILLY = ComparisonQuestion(
    traces=(f"philly:{JOBS}",),
    policies=("sla", "srtf", "srsf", "las", "fifo", "static"),
    tiers=("1", "3"),
    costs=("1s",),
)
"""Without fifo-backfill, which needs minutes for its reservations under long queues."""

# More gangs than Philly's 93 % of single devices, so that fragmentation and preemption matter; runs are capped at four
# hours, well below the day over which jobs arrive, so that the load is really there. Arrivals swing over the day, as they
# do everywhere: a flat load of 0.8 never queues, and then every policy is as good as any.
SHAPE = "diurnal=yes,max=4h,sizes=1:0.6/2:0.1/4:0.15/8:0.13/16:0.02"
MADE_LOADS = (0.8, 1.0, 1.2)
MADE = ComparisonQuestion(
    traces=tuple(f"synthetic:jobs=2000,load={load},{SHAPE}" for load in MADE_LOADS), clusters=("60x8",), seeds=(1, 2, 3),
    policies=("sla", "fifo", "fifo-backfill", "srtf", "las", "static"), costs=("1s",),
)  # fmt: skip
WORDS = {
    "1": "one tier", "3": "three tiers", "exact": "exact run times", "noisy": "noisy run times", "none": "no run times",
    "1s": "images of 1 s", "60s": "images of 60 s",
}  # fmt: skip
PLOTTED = "three tiers, exact run times, images of 1 s"
PLOTS = dict(zip(PROMISES, ("leaderboard.svg", "leaderboard-work.svg"), strict=True))
SUBSET = (
    "Every load at exact run times and small images, and every combination of run times and images at load 1.2: about eight",
    "minutes on two cores. `make leaderboard ARGS=--full` has every combination at every load, in about twenty.",
)
Groups = tuple[ComparisonGroup, ...]


def questions(full: bool) -> list[ComparisonQuestion]:
    """What is asked about Philly. Without run times srsf is left out: it preempts so often that a cell takes many minutes."""
    varied = msgspec.structs.replace(
        PHILLY, estimates=("exact", "noisy"), costs=COSTS, loads=LOADS[1:] if full else MIDDLE
    )
    others = tuple(policy for policy in PHILLY.policies if policy != "srsf")
    return [
        msgspec.structs.replace(PHILLY, loads=LOADS), varied,
        msgspec.structs.replace(varied, estimates=("none",), policies=others),
    ]  # fmt: skip


def run(full: bool, workers: int, save: Path) -> tuple[Groups, Groups]:
    """The groups of Philly, each once, and those of made-up jobs. Raises SystemExit when a cell failed."""
    found = []
    asked = [*questions(full), MADE]
    with Progress() as progress:
        bar = progress.add_task("", total=float(len(asked)))
        for at, question in enumerate(asked):
            update = lambda share, text, at=at: progress.update(bar, completed=at + share, description=text)  # noqa: E731
            found.append(compare(question, workers, update, save))
    failed = [f"{cell.cell.policy}: {cell.cause}; {cell.command}" for each in found for cell in each.failures]
    if failed:
        raise SystemExit("\n".join(failed))
    *real, made = found
    return tuple({group.settings: group for each in real for group in each.groups}.values()), made.groups


def sections(groups: Groups) -> dict[str, list[ComparisonGroup]]:
    """Groups that differ in their load alone, by the words for the rest."""
    found: dict[str, list[ComparisonGroup]] = {}
    for group in groups:
        words = dict(group.settings)
        found.setdefault(", ".join(WORDS[words[axis]] for axis in ("tiers", "estimates", "costs")), []).append(group)
    return found


def verdict(groups: Groups) -> list[str]:
    """In how many cells sla meets the bar, and what it misses in the others."""
    misses = {at: missed(group) for at, group in enumerate(groups)}
    met = sum(not lines for lines in misses.values())
    lines = [f"`sla` meets the bar in {met} of {len(groups)} cells. The bar: {BAR_TEXT}.", ""]
    for at, reasons in misses.items():
        words = dict(groups[at].settings)
        where = ", ".join([*(WORDS[words[axis]] for axis in ("tiers", "estimates", "costs")), f"load {words['load']}"])
        lines += [f"- {where}: {'; '.join(reasons)}"] if reasons else []
    return lines


def page(real: Groups, made: Groups, full: bool) -> str:
    """The whole page."""
    lines = [
        "# Leaderboard", "",
        f"Made by `make leaderboard{' ARGS=--full' if full else ''}`; every number comes from the simulator and is the same on",
        "every machine. [`tide compare`](compare.md) runs the same cells, and any others.",
        *([] if full else SUBSET), "",
        f"## Real jobs: `{PHILLY.traces[0]}`", "",
        f"The first {JOBS:,} jobs of Philly on {PHILLY.clusters[0]} (480 devices), as they came and stretched to other loads.",
        "One tier: every job standard; three: premium 20 %, standard 30 %, basic 50 %. Run times that policies get: exact,",
        "with a log-normal error (sigma 1), or none. Images: a save takes 1 s and a restore 0.5 s, or 60 s each; a launch",
        "takes 3 s. `srsf` is left out where there are no run times: a simulation of it takes many minutes.", "",
        "`tide compare -t philly:10000 -p sla,srtf,srsf,las,fifo,static --loads trace,0.8,1.0,1.2,1.5,2.0 --tiers 1,3`", "",
        *verdict(real), "",
        PARETO_TEXT, "", *(f"- {line}" for line in pareto_statements(real)), "",
        f"Promises kept by count and by work, {PLOTTED}:", "", *(f"![{key} by load]({file})" for key, file in PLOTS.items()),
    ]  # fmt: skip
    for name, groups in sections(real).items():
        lines += ["", f"### {name.capitalize()}", "", *markdown_table(groups, ["load"])]
    lines += [
        "", "## Made-up jobs", "",
        f"2,000 jobs on 60x8 (480 devices), 3 seeds for each load, tiers and costs as above: `synthetic:load=…,{SHAPE}`.",
        "Arrivals swing over the day, so load 0.8 queues at its peak too.",
    ]  # fmt: skip
    for load, group in zip(MADE_LOADS, made, strict=True):
        bound = max(attainable(cell.result) for cells in group.policies.values() for cell in cells)
        lines += ["", f"### Load {load:g}", "", *markdown_table([group], [])]
        lines += [
            "",
            f"With a cluster to itself each, {percent(bound)} of these jobs could attain: launching takes time too.",
        ]
    return "\n".join(
        [*lines, "", "## How to read the tables", "", "Bold: best of its load. " + LEGEND.partition("; ")[2], ""]
    )


def plot(groups: Sequence[ComparisonGroup], key: str) -> str:
    """Promises kept by load, as the text of an SVG file; ``key`` is one of PROMISES."""
    stretched = [group for group in groups if dict(group.settings)["load"][0].isdigit()]

    def paint(axes: Any) -> None:
        paint_by_load(axes, FIGURE[key], stretched, styles(PHILLY.policies))

    return draw(f"leaderboard-{key}", paint, size=(8.4, 4.0), ground="#ffffff").decode()


def behind(real: Groups, made: Groups) -> list[str]:
    """Where sla is not ahead, see --check."""
    plain = {"load": "as the trace has it", "tiers": "1", "estimates": "exact", "costs": "1s"}
    lines = [
        line
        for group in real
        if plain.items() <= dict(group.settings).items()
        for line in missed(group)
        if line.startswith(tuple(FIGURE[key].title for key in PROMISES))
    ]
    for load, group in zip(MADE_LOADS, made, strict=True):
        kept = {name: summary(FIGURE["kept_by_count"], cells).mean for name, cells in group.policies.items()}
        lines += [f"{name} at load {load:g}" for name, share in kept.items() if name != "sla" and share >= kept["sla"]]
    return lines


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--full", action="store_true")
    options.add_argument("--check", action="store_true")
    options.add_argument("-j", "--workers", type=int, default=cpus())
    options.add_argument("--save", type=Path, default=ROOT / "out" / "leaderboard")
    given = options.parse_args()
    given.save.parent.mkdir(exist_ok=True)
    real, made = run(given.full, given.workers, given.save)
    (DOCS / "leaderboard.md").write_text(page(real, made, given.full))
    for key, file in PLOTS.items():
        (DOCS / file).write_text(plot(sections(real)[PLOTTED], key))
    print(f"wrote {DOCS / 'leaderboard.md'}, {', '.join(PLOTS.values())}")
    lines = behind(real, made)
    print(f"sla is behind: {'; '.join(lines)}" if lines else "sla is ahead at every load")
    return 1 if lines and given.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
