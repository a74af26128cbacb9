"""A profile: how a simulated cluster behaves and how its jobs are asked for, as one object.

The engine and the policies never see it. The loop (``sim.run``) admits jobs and answers requests for plans when the profile
says, and the world (``sim.world``) charges its costs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import yaml
from msgspec import Struct, structs

from ..base.errors import UsageError
from ..base.key_values import key_values
from ..base.units import MINUTE, SECOND, parse_duration, whole_number
from .costs import FREE, OPERATIONS, Costs, TabledCost, parse_cost

RoundEnd: TypeAlias = Literal["fixed", "idle", "last-finish"]
Ties: TypeAlias = Literal["listed", "name", "fewest", "shuffled"]
Placement: TypeAlias = Literal["trace", "consolidate", "one-node", "any"]


class ClusterProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in microseconds. The defaults are an event-driven cluster that plans as soon as a plan can change anything."""

    name: str = "default"
    costs: Costs = Costs()
    round_us: int = 0
    """Jobs are admitted and plans are made at the starts of rounds of this length only; 0: whenever something happens."""
    round_end: RoundEnd = "fixed"
    """``fixed``: rounds start at multiples of ``round_us``. ``idle``: likewise, but in an empty cluster no rounds pass: the next
    one starts with the next submission. ``last-finish``: jobs run whole steps of their programs, and the next round starts at
    the latest finish of those begun in this one (Gavel, OSDI'20), so that rounds are a little shorter."""
    reallocation_us: int = 0
    """Least time between two allocations: a request for a plan waits for so long after the last one."""
    placement: Placement = "trace"
    """What every job asks for; ``trace``: what the trace says."""
    ties: Ties = "listed"
    """Order of jobs admitted at the same instant, which is that of jobs with equal keys in every policy: as listed, by name,
    fewest devices first, or shuffled by ``seed``."""
    refuse: bool = False
    """Whether a job that cannot start at once is refused rather than queued. Jobs are then admitted one by one."""
    tick_us: int = 0
    """Starts and ends are rounded up to multiples of this, as simulators of whole seconds have it; 0: they are not."""
    splice: bool = True
    """Whether elastic jobs may run on fewer devices than they ask for; otherwise they get all or none."""
    seed: int = 1
    """Of the streams that recorded costs and shuffled ties are drawn from."""

    @property
    def paced(self) -> bool:
        """Whether plans wait for anything at all."""
        return bool(self.round_us or self.tick_us or self.reallocation_us or self.refuse)


PROFILES: dict[str, ClusterProfile] = {
    "default": ClusterProfile(),
    "ideal": ClusterProfile(name="ideal", costs=FREE),
    # Whole seconds, GPUs counted wherever they lie, nothing costs time (simulator/run_sim.py).
    "tiresias": ClusterProfile(name="tiresias", costs=FREE, placement="any", tick_us=SECOND, splice=False),
    # ckpt_overhead of framework/QSSF Service/policies/policy.py: 7, 30 or 60 s are added to what a preempted job has left.
    "helios": ClusterProfile(
        name="helios", placement="consolidate", tick_us=SECOND, splice=False,
        costs=Costs(
            launch_us=0, save_us=0, restore_us=TabledCost(((1, 7 * SECOND), (2, 30 * SECOND), (9, 60 * SECOND))),
        ),
    ),
    # One super node, whole seconds (cluster-trace-gpu-v2020/simulator).
    "pai": ClusterProfile(name="pai", costs=FREE, placement="any", tick_us=SECOND, splice=False),
    # scheduler/scheduler.py: rounds of 360 s, allocations at least 1,920 s apart.
    "gavel": ClusterProfile(
        name="gavel", costs=FREE, placement="any", round_us=6 * MINUTE, round_end="last-finish",
        reallocation_us=1_920 * SECOND, splice=False,
    ),
}  # fmt: skip


def _flag(text: Any) -> bool:
    raw = str(text).lower()
    if raw not in ("yes", "no", "true", "false"):
        raise UsageError(f"{text!r} is neither yes nor no")
    return raw in ("yes", "true")


def _choice(kind: Any) -> Callable[[Any], str]:
    def read(text: Any) -> str:
        if text not in get_args(kind):
            raise UsageError(f"{text!r} is not one of {', '.join(get_args(kind))}")
        return str(text)

    return read


def _seed(text: Any) -> int:
    value = whole_number(text)
    if value is None:
        raise UsageError(f"{text!r} is not a whole number")
    return value


class ProfileKey(Struct, frozen=True):
    """One key of a profile as users write it: how it is read, and what it means."""

    read: Callable[[Any], Any]
    help: str


KEYS: dict[str, ProfileKey] = {
    "launch": ProfileKey(parse_cost, "cost of a job's first launch"),
    "save": ProfileKey(parse_cost, "cost of saving a job that is preempted"),
    "restore": ProfileKey(parse_cost, "cost of bringing a saved job back"),
    "restart": ProfileKey(parse_cost, "cost of a launch after the process was lost [as launch]"),
    "stop": ProfileKey(parse_cost, "cost of stopping a job for good or to run it again"),
    "checkpoint": ProfileKey(parse_cost, "cost of imaging a running job [as save]"),
    "checkpoint_every": ProfileKey(parse_duration, "run time between a job's own checkpoints, 0: none"),
    "round": ProfileKey(parse_duration, "length of rounds, 0: event-driven"),
    "round_end": ProfileKey(_choice(RoundEnd), "fixed, idle or last-finish"),
    "reallocation": ProfileKey(parse_duration, "least time between two allocations"),
    "placement": ProfileKey(_choice(Placement), "trace, consolidate, one-node or any"),
    "ties": ProfileKey(_choice(Ties), "listed, name, fewest or shuffled"),
    "refuse": ProfileKey(_flag, "yes: what cannot start at once is refused"),
    "tick": ProfileKey(parse_duration, "starts and ends are rounded up to multiples of it, 0: not"),
    "splice": ProfileKey(_flag, "no: elastic jobs get all their devices or none"),
    "seed": ProfileKey(_seed, "of recorded costs and shuffled ties"),
}
"""Keys of ``--profile NAME:key=value`` and of profile files."""
_REMEDY = (
    f"write NAME or NAME:key=value,… with a NAME of {', '.join(PROFILES)}, or a .yaml file with base: NAME; keys are "
    + (", ".join(KEYS))
)


def load_profile(text: str, seed: int = 1) -> ClusterProfile:
    """The profile that ``text`` names: ``gavel``, ``helios:save=3s,ties=name``, or a YAML file of the same keys.

    A file may name the profile that it changes as ``base``. ``seed`` holds unless the text gives one. Raises UsageError with
    every mistake.
    """
    if text.endswith((".yaml", ".yml")):
        return _from_file(Path(text), seed)
    name, _, rest = text.partition(":")
    return changed_profile(_named(name), dict(key_values(rest, f"profile {text}", _REMEDY)), seed, text)


def _named(name: Any) -> ClusterProfile:
    if not isinstance(name, str) or name not in PROFILES:
        raise UsageError(f"no profile called {name!r}", _REMEDY)
    return PROFILES[name]


def _from_file(path: Path, seed: int) -> ClusterProfile:
    try:
        tree = load_yaml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read profile {path}: {error.strerror}", _REMEDY) from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"cannot read profile {path}: {error}", _REMEDY) from error
    if not isinstance(tree, dict):
        raise UsageError(f"profile {path} is not a mapping of keys", _REMEDY)
    return changed_profile(_named(tree.pop("base", "default")), tree, seed, path.stem)


class _Once(yaml.SafeLoader):
    """YAML keeps the last of equal keys, and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[tuple[str, str], int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            if name in lines:
                raise ValueError(f"line {line}: {key.value!r} is given twice (first at line {lines[name]})")
            lines[name] = line
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def load_yaml(text: str) -> Any:
    """What a YAML text holds. Raises yaml.YAMLError, and ValueError for a key that is there twice."""
    return yaml.load(text, _Once)


def changed_profile(base: ClusterProfile, given: dict[str, Any], seed: int, name: str) -> ClusterProfile:
    """``base`` with these keys changed. Raises UsageError naming every key that is unknown or cannot be read."""
    mistakes, values = [], {"seed": seed}
    for key, text in given.items():
        known = KEYS.get(key)
        if known is None:
            mistakes.append(f"{key}: not a key of a profile")
            continue
        try:
            values[key] = known.read(text)
        except UsageError as error:
            mistakes.append(f"{key}: {error.message}")
    if mistakes:
        raise UsageError(f"profile {name}:\n  " + "\n  ".join(mistakes), _REMEDY)
    paid = {f"{key}_us": values.pop(key) for key in (*OPERATIONS, "checkpoint_every") if key in values}
    timed = {f"{key}_us": values.pop(key) for key in ("round", "reallocation", "tick") if key in values}
    profile = structs.replace(base, name=name, costs=structs.replace(base.costs, **paid), **timed, **values)
    if profile.round_end != "fixed" and not profile.round_us:
        raise UsageError(f"profile {name}: round_end={profile.round_end} without rounds", "give round=6m, too")
    return profile
