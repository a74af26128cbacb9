"""The benches of two commits by turns on one machine, and the ratio of every figure that they keep.

    python bench/compare.py BASE [--pairs 7] [--bar 1.05] [engine policies ...]

BASE and the present commit are laid out side by side (git worktree) and run with this interpreter, in pairs, each time in
the other order. The median of the pairs' ratios counts, so that a machine that slows down for a minute changes little.
Above 1 is slower, larger, or less a second. Figures at or below ``--least`` of their unit (0.05 ms, 0.05 s) say nothing and
are left out. Results go to build/compare.json; those under bench/results are not touched. Exits with 1 where a ratio is
above the bar.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from facts import facts

ROOT = Path(__file__).parents[1]
COSTS = re.compile(r"(^|_)(ms|us|s|mb|mib|percent|bytes)($|_)")
RATES = re.compile(r"(^|_)per_s($|_)|_rate$")
USUAL = ("engine", "policies", "cli_start", "submits", "api")


def figures(found: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """(path, value) of every number whose name says what it is; of a list of numbers the median."""
    if isinstance(found, dict):
        for key, value in found.items():
            if "bar" not in str(key):
                yield from figures(value, f"{name}/{key}" if name else str(key))
    elif isinstance(found, list) and found and all(isinstance(value, int | float) for value in found):
        yield from figures(statistics.median(found), name)
    elif isinstance(found, int | float) and not isinstance(found, bool):
        last = name.rsplit("/", 1)[-1]
        if COSTS.search(last) or RATES.search(last):
            yield name, float(found)


def ratio(name: str, base: float, now: float) -> float:
    """How much worse ``now`` is, 1 for equal."""
    return base / now if RATES.search(name.rsplit("/", 1)[-1]) else now / base


def run(tree: Path, bench: str) -> dict[str, float]:
    """One run of a bench in ``tree``; its figures. Raises SystemExit with the end of its output where it kept none."""
    kept = tree / "bench" / "results" / f"{bench}.json"
    kept.unlink(missing_ok=True)
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(
        [sys.executable, f"bench/{bench}.py"], cwd=tree, env=env, text=True, capture_output=True, check=False
    )
    if not kept.exists():
        raise SystemExit(f"{tree.name}: bench/{bench}.py kept nothing (exit {done.returncode})\n{done.stderr[-2000:]}")
    return dict(figures(json.loads(kept.read_text())["measured"]))


def lay_out(commit: str, at: Path) -> Path:
    """A work tree of ``commit``; the caller removes it."""
    subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(at), commit], check=True)
    return at


def compare(bench: str, base: Path, now: Path, pairs: int, least: float) -> dict[str, dict[str, Any]]:
    """Figure to both medians, the ratios and their median, over ``pairs`` runs by turns."""
    runs: dict[Path, list[dict[str, float]]] = {base: [], now: []}
    for pair in range(pairs):
        for tree in (base, now) if pair % 2 else (now, base):
            print(f"  {bench}: pair {pair + 1} of {pairs}, {tree.name} ...", file=sys.stderr, flush=True)
            runs[tree].append(run(tree, bench))
    found = {}
    for name in runs[base][0]:
        both = [
            (old[name], new[name])
            for old, new in zip(runs[base], runs[now], strict=True)
            if name in old and name in new
        ]
        both = [(old, new) for old, new in both if min(old, new) > least]
        if both:
            ratios = [ratio(name, old, new) for old, new in both]
            found[name] = {
                "base": statistics.median(old for old, _ in both),
                "now": statistics.median(new for _, new in both),
                "ratio": statistics.median(ratios),
                "ratios": ratios,
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("benches", nargs="*", default=USUAL, metavar="BENCH", help=f"default: {' '.join(USUAL)}")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--bar", type=float, default=1.05)
    parser.add_argument("--least", type=float, default=0.05)
    args = parser.parse_intermixed_args()
    above = 0
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tidewright-compare-") as folder:
        try:
            base, now = lay_out(args.base, Path(folder) / "base"), lay_out("HEAD", Path(folder) / "now")
            for bench in args.benches:
                results[bench] = compare(bench, base, now, args.pairs, args.least)
                print(f"{bench:<52}{'base':>10}{'now':>10}  ratio (bar {args.bar:.2f})")
                for name, row in results[bench].items():
                    above += row["ratio"] > args.bar
                    mark = "  above" if row["ratio"] > args.bar else ""
                    print(f"  {name:<50}{row['base']:>10.4g}{row['now']:>10.4g}{row['ratio']:>7.3f}{mark}", flush=True)
        finally:
            for tree in ("base", "now"):
                subprocess.run(
                    ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(Path(folder) / tree)],
                    check=False, capture_output=True,
                )  # fmt: skip
    kept = ROOT / "build" / "compare.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps({"machine": facts(), "base": args.base, "measured": results}, indent=2) + "\n")
    sys.exit(1 if above else 0)


if __name__ == "__main__":
    main()
