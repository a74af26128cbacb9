"""config.yaml: the defaults, what it can set, and every mistake at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.app.settings import Settings, load_settings, overridden, parse_settings
from tidewright.base.errors import UsageError
from tidewright.base.units import MINUTE, SECOND
from tidewright.engine.settings import live_settings


def test_no_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_settings(tmp_path) == Settings(policy="sla", engine=live_settings())


def test_everything_can_be_set() -> None:
    found = parse_settings(
        "policy: las:round=6m\nlisten: 127.0.0.1:7700\nslots: 4\nbackend: cpu\nimage_quota: 2GiB\n"
        "node_timeout: 1m\nforecast_check: 0\n"
        "engine:\n  backoff: 5s\n  gang_freeze_bound: 2m\n  launch_attempts: 3\n  freeze_kinds: [cpu, fake]\n",
        "config.yaml",
    )
    assert (found.policy, found.listen, found.slots, found.backend) == ("las:round=6m", "127.0.0.1:7700", 4, "cpu")
    assert found.image_quota == 2 << 30
    assert (found.node_timeout_us, found.forecast_check_us) == (MINUTE, 0)
    assert found.engine.backoff_us == 5 * SECOND and found.engine.gang_freeze_bound_us == 2 * MINUTE
    assert found.engine.launch_attempts == 3 and found.engine.freeze_kinds == ("cpu", "fake")
    assert found.engine.auto_level == live_settings().auto_level


def test_all_mistakes_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("polcy: sla\nlisten: 7700\nengine:\n  backof: 5s\n  save: soon\nslots: many\n")
    with pytest.raises(UsageError) as caught:
        load_settings(tmp_path)
    lines = [line.removeprefix(str(path) + ":") for line in caught.value.message.splitlines()[1:]]
    assert [line.split(":")[0] for line in lines] == ["1", "2", "4", "5", "6"]
    assert "did you mean 'policy'" in lines[0] and "engine.backoff" in lines[2]


def test_the_command_line_wins() -> None:
    assert overridden(Settings(policy="fifo", slots=3), policy="las", slots=None) == Settings(policy="las", slots=3)


@pytest.mark.parametrize("key", ["planning_retry", "think_retry"])
def test_a_setting_is_known_by_the_name_it_had_before(key: str) -> None:
    assert parse_settings(f"engine:\n  {key}: 7s\n", "config.yaml").engine.planning_retry_us == 7 * SECOND


def test_rates_are_read_from_the_file_that_is_named(tmp_path):
    table = tmp_path / "rates.yaml"
    table.write_text("kinds: {h100: 2}\n")
    found = parse_settings(f"rates: {table}\n", "config.yaml")
    assert found.engine.rates.kinds == {"h100": 2.0}
    assert parse_settings("rates: gavel\n", "config.yaml").engine.rates.throughputs
    beside = parse_settings("rates: rates.yaml\n", str(tmp_path / "config.yaml"))
    assert beside.engine.rates == found.engine.rates and beside.rates == str(table), (
        "wherever the controller is started"
    )
    with pytest.raises(UsageError, match=r"config\.yaml:2: rates: cannot read rates /.*missing\.yaml"):
        parse_settings("policy: sla\nrates: missing.yaml\n", "config.yaml")


def test_rates_are_no_key_of_the_engine():
    with pytest.raises(UsageError, match="rates"):
        parse_settings("engine: {rates: 5}\n", "config.yaml")
