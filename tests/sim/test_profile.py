"""Profiles and costs as users write them, and what costs do to a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tidewright.base.errors import UsageError
from tidewright.base.units import MS, SECOND
from tidewright.engine.settings import EngineSettings
from tidewright.model.job import Level
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import (
    FREE,
    Costs,
    RecordedCost,
    SizedCost,
    TabledCost,
    cost_us,
    parse_cost,
    parse_costs,
    quantile_us,
    recorded_cost,
)
from tidewright.sim.profile import KEYS, PROFILES, ClusterProfile, load_profile
from tidewright.sim.rate_files import load_rates
from tidewright.sim.run import Options, Simulation
from tidewright.sim.trace import make_trace

HELIOS = TabledCost(((1, 7 * SECOND), (2, 30 * SECOND), (9, 60 * SECOND)))


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("3s", 3 * SECOND),
        ("0", 0),
        ("2s+50ms/device", SizedCost(base_us=2 * SECOND, per_device_us=50 * MS)),
        ("1s+image@300MB", SizedCost(base_us=SECOND, rate=300_000_000)),
        ("image@1GiB", SizedCost(rate=1 << 30)),
        ("1:7s/2:30s/9:60s", HELIOS),
    ],
)
def test_costs_are_written_like_this(text: str, cost: object) -> None:
    assert parse_cost(text) == cost


@pytest.mark.parametrize(
    "text", ["", "soon", "1s/node", "1s+2s", "image@0", "9:60s/2:30s", "1:7s/1:8s", "0:7s", "image@fast", "1:7s/two:8s"]
)
def test_other_costs_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cost(text)
    assert caught.value.remedy


def test_costs_by_size() -> None:
    assert [cost_us(HELIOS, devices, 0, 1) // SECOND for devices in (1, 2, 8, 9, 64)] == [7, 30, 30, 60, 60]
    assert cost_us(TabledCost(((2, SECOND),)), 1, 0, 1) == 0
    sized = SizedCost(base_us=SECOND, per_device_us=MS, rate=1000)
    assert cost_us(sized, 8, 2500, 1) == SECOND + 8 * MS + 2_500 * MS


def test_recorded_costs_are_drawn_from_what_was_recorded() -> None:
    assert recorded_cost([5, 5, 5]) == 5
    few = recorded_cost([30, 10, 20])
    assert few == RecordedCost((10, 20, 30))
    assert [quantile_us(few, share) for share in (0.0, 0.25, 0.5, 1.0)] == [10, 15, 20, 30]
    samples = np.random.Generator(np.random.PCG64(3)).exponential(SECOND, 5000)
    many = recorded_cost([int(sample) for sample in samples])
    assert isinstance(many, RecordedCost) and len(many.points_us) == 101
    drawn = [cost_us(many, 1, 0, 7, "save", job, 1) for job in range(4000)]
    assert np.mean(drawn) == pytest.approx(samples.mean(), rel=0.06)
    assert drawn[:9] == [cost_us(many, 1, 0, 7, "save", job, 1) for job in range(9)]
    assert drawn[0] != cost_us(many, 1, 0, 8, "save", 0, 1)


def test_some_costs_of_several() -> None:
    base = Costs(launch_us=9 * SECOND)
    changed = parse_costs("save=60s,restore=1:7s/2:30s/9:60s,checkpoint_every=5m", base)
    assert changed == Costs(
        launch_us=9 * SECOND, save_us=60 * SECOND, restore_us=HELIOS, checkpoint_every_us=300 * SECOND
    )
    assert parse_costs("free", base) == FREE
    for text in ("", "saves=3s", "save"):
        with pytest.raises(UsageError, match="costs: "):
            parse_costs(text, base)


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_by_name(name: str) -> None:
    assert load_profile(name) == PROFILES[name]
    assert load_profile(name, seed=5).seed == 5


def test_every_key_changes_something_and_is_read() -> None:
    other = {
        "round": "6m", "round_end": "last-finish", "reallocation": "32m", "placement": "any", "ties": "fewest", "refuse": "yes",
        "tick": "1s", "splice": "no", "seed": "9", "checkpoint_every": "5m",
    }  # fmt: skip
    for key in KEYS:
        value = other.get(key, "17s")
        text = f"{key}={value}" + (",round=6m" if key == "round_end" else "")
        assert load_profile(f"default:{text}") != (
            load_profile("default:round=6m" if key == "round_end" else "default")
        )
        assert KEYS[key].help


def test_a_profile_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("base: helios\nsave: 60s\nround: 5m\nround_end: idle\nrefuse: true\nseed: 3\n")
    profile = load_profile(str(path))
    assert (profile.name, profile.costs.save_us, profile.costs.restore_us) == ("slow", 60 * SECOND, HELIOS)
    assert (profile.round_us, profile.round_end, profile.refuse, profile.seed) == (300 * SECOND, "idle", True, 3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gavle", "no profile called 'gavle'"),
        ("gavel:round", "'round' is not key=value"),
        ("gavel:rounds=3s,tick=x", "rounds: not a key of a profile\n  tick: not a duration"),
        ("default:ties=random", "not one of listed, name, fewest, shuffled"),
        ("default:refuse=maybe", "neither yes nor no"),
        ("default:seed=x", "not a whole number"),
        ("default:round_end=idle", "without rounds"),
        ("nowhere.yaml", "cannot read profile nowhere.yaml"),
    ],
)
def test_mistakes_in_profiles(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_profile(text)
    assert said in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "- a list",
        "base: [",
        "base: nobody",
        "base: [a]",
        "seed: .inf",
        "seed: 2.9",
        "seed: .nan",
        "seed: yes",
        "seed: [1]",
        "save: 2024-13-45",
    ],
)
def test_mistakes_in_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(UsageError):
        load_profile(str(path))


def test_a_key_that_is_there_twice_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("round: 6m\nties: name\nround: 12m\n")
    with pytest.raises(UsageError, match=r"line 3: 'round' is given twice \(first at line 1\)"):
        load_profile(str(path))
    path.write_text("- {count: 1, devices: 2, devices: 4}\n")
    with pytest.raises(UsageError, match="'devices' is given twice"):
        load_cluster(str(path))
    path.write_text("kinds: {v100: 1, v100: 2}\n")
    with pytest.raises(UsageError, match="'v100' is given twice"):
        load_rates(str(path))


def ends(costs: Costs, level: Level = Level.FULL) -> list[float]:
    """A job of 100 s and 3 devices, which gives way at 10 s to one of 5 s."""
    trace = make_trace("hand", np.array([0.0, 10.0]), np.array([100.0, 5.0]), np.array([3, 3]),
                       image_bytes=np.array([10**9, 0]))  # fmt: skip
    engine = EngineSettings(history_length=0, forecasts=False, auto_level=int(level), gang_level=int(level))
    options = Options(profile=ClusterProfile(costs=costs), engine=engine)
    simulation = Simulation(trace, load_cluster("1x3"), make("srtf"), options)
    simulation.run()
    return (simulation.outcomes.end / SECOND).tolist()


def test_each_cost_is_paid_where_it_falls() -> None:
    assert ends(FREE) == [105, 15]
    assert ends(Costs(launch_us=2 * SECOND, save_us=0, restore_us=0)) == [109, 17]
    table = TabledCost(((1, 7 * SECOND), (2, 30 * SECOND)))
    assert ends(Costs(launch_us=0, save_us=0, restore_us=table)) == [135, 15]
    image = SizedCost(base_us=SECOND, rate=10**9)
    assert ends(Costs(launch_us=0, save_us=image, restore_us=0)) == [107, 17]
    drawn = ends(Costs(launch_us=0, save_us=RecordedCost((SECOND, 9 * SECOND)), restore_us=0))
    assert 106 <= drawn[0] <= 114 and drawn[0] == drawn[1] + 90


def test_a_launch_after_the_process_was_lost_is_a_restart() -> None:
    costs = Costs(launch_us=2 * SECOND, restart_us=20 * SECOND, stop_us=SECOND)
    assert ends(costs, Level.REQUEUE) == [138, 18], (
        "stopped 10-11, launched and run 11-18, restarted 18-38, then 100 s anew"
    )
    assert ends(Costs(launch_us=2 * SECOND, stop_us=SECOND), Level.REQUEUE) == [120, 18]


def test_the_profile_is_in_the_result() -> None:
    trace = make_trace("hand", np.array([0.0]), np.array([1.0]), np.array([1]))
    result = Simulation(trace, load_cluster("1x1"), make("fifo"), Options(profile=PROFILES["pai"])).run()
    assert result.profile == "pai"
