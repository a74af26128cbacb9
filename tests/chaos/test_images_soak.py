"""Random faults over jobs that are imaged: each ends with the numbers of an uninterrupted run, or says what was lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidewright.checkpoint.program import find_criu

from .hosts import Hosts
from .storm import DISK_MB, Kind, Storm

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(isinstance(find_criu(), str), reason="no CRIU here: tide setup criu"),
]
FEW = {"alone": Kind("plain_numpy", 1, 1500), "pair": Kind("ddp_mlp", 2, 100), "pool": Kind("pool", 1, 300)}
MANY = {
    "numbers-1": Kind("plain_numpy", 1, 6000),
    "pair-1": Kind("ddp_mlp", 2, 400),
    "table-1": Kind("table", 1, 3000),
    "gpt-1": Kind("fsdp2_gpt", 2, 150),
    "pool-1": Kind("pool", 1, 900),
    "numbers-2": Kind("plain_numpy", 1, 6000),
    "pair-2": Kind("ddp_mlp", 2, 400),
    "table-2": Kind("table", 1, 3000),
    "gpt-2": Kind("fsdp2_gpt", 2, 150),
    "pool-2": Kind("pool", 1, 900),
}


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    yield found
    found.clean()
    assert (found.left(), found.groups()) == ([], [])


def storm(hosts: Hosts, kinds: dict[str, Kind], seed: int) -> Storm:
    return Storm(hosts, random.Random(seed), kinds)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_few_faults(hosts: Hosts) -> None:
    found = storm(hosts, FEW, seed=3)
    found.run(faults=8, pause_s=1.0, limit_s=60)
    assert found.verdict() == "", "seed 3"


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", [100])
def test_a_hundred_faults_over_ten_jobs(hosts: Hosts, seed: int) -> None:
    hosts.small_disk("c", DISK_MB)
    found = storm(hosts, MANY, seed)
    found.run(faults=100, pause_s=3.0, limit_s=700)
    assert found.verdict() == "", f"seed {seed}"
    assert len(found.done) == 100, found.done
