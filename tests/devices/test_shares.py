"""Shares of devices: what a rank gets of one, by which means it is enforced, and that the kit finds what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.devices.test_devices import H100, PaperDriver
from tests.sizes import unshrunk
from tidewright.base.errors import UsageError
from tidewright.devices import cpu, fake, nvidia, share_grants
from tidewright.devices.protocol import COUNTED_ONLY, ShareGrant, ShareMeans, Slice
from tidewright.devices.share_grants import fraction, gpu_grant, memory_variables, slot_grant
from tidewright.devices.shares import ShareTable
from tidewright.testing.device_shares import check_shares

GIB = 2**30
MPS = Path("/run/mps")


def levels(means: tuple[ShareMeans, ...]) -> list[str]:
    return [each.level for each in means]


# -- what is held of a device -----------------------------------------------------------------------------------------


def test_an_answer_says_how_much_is_left_and_what_to_do() -> None:
    table = ShareTable(2, 40 * GIB)
    table.add(Slice("1.1", 0, 700, 30 * GIB))
    with pytest.raises(
        UsageError, match=r"400/1000 of compute of device 0, which has 300/1000 of compute left\n  ask for less"
    ):
        table.add(Slice("2.1", 0, 400))
    with pytest.raises(UsageError, match=r"11.0GiB of device 0, which has 10.0GiB left"):
        table.add(Slice("2.1", 0, 0, 11 * GIB))
    table.add(Slice("2.1", 1, 400, 11 * GIB))
    assert [one.holder for one in table.all()] == ["1.1", "2.1"]


def test_who_asks_again_is_not_in_the_way_of_itself_and_may_move() -> None:
    table = ShareTable(2, 40 * GIB)
    table.add(Slice("1.1", 0, 700, 30 * GIB))
    table.add(Slice("1.1", 0, 800, 40 * GIB))
    table.add(Slice("1.1", 1, 800, 40 * GIB))
    table.add(Slice("2.1", 0, 1000, 40 * GIB))
    with pytest.raises(UsageError):
        table.add(Slice("1.1", 0, 1))
    assert [(one.holder, one.device) for one in table.all()] == [("2.1", 0), ("1.1", 1)], "a refusal changes nothing"


def test_best_effort_and_frozen_holders_have_no_compute_set_aside() -> None:
    table = ShareTable(1, 40 * GIB)
    for holder, part in (
        ("be", Slice("be", 0, 900, share_class="be")),
        ("cold", Slice("cold", 0, 900, GIB, frozen=True)),
    ):
        table.add(part)
        assert part.set_aside == 0, holder
    table.add(Slice("rt", 0, 1000, 40 * GIB))
    with pytest.raises(UsageError, match="compute"):
        table.add(Slice("cold", 0, 900, 0))


@pytest.mark.parametrize(
    "broken",
    [
        {"add": lambda self, part: self._by_holder.update({part.holder: part})},
        {"add": lambda self, part: self._by_holder.update({f"{part.holder}.{len(self._by_holder)}": part})},
        {"release": lambda self, holder: None},
        {"release": lambda self, holder: self._by_holder.pop(holder)},
        {"all": lambda self: tuple(self._by_holder.values())[:2]},
    ],
)
def test_the_kit_finds_a_table_that_is_wrong(broken: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in broken.items():
        monkeypatch.setattr(ShareTable, name, function)
    with unshrunk(), pytest.raises((AssertionError, KeyError)):
        check_shares(lambda: fake.FakeBackend("n1", 2), examples=60)


@pytest.mark.parametrize(
    "wrong",
    [
        ShareGrant(),
        ShareGrant(idle=True, compute=(ShareMeans("x", "y", "cpu weights"),)),
        ShareGrant(compute=(ShareMeans("x", ""),), memory=(ShareMeans("x", "y"),), share_class=(ShareMeans("x", "y"),)),
    ],
)
def test_the_kit_finds_a_grant_that_does_not_say_how_it_is_enforced(
    wrong: ShareGrant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "gpu_grant", lambda *rest: wrong)
    with unshrunk(), pytest.raises(AssertionError):
        check_shares(lambda: fake.FakeBackend("n1", 2))


# -- CPU slots --------------------------------------------------------------------------------------------------------


@given(compute=st.integers(0, 1000), ranks=st.integers(1, 64), memory=st.integers(0, 2**40))
def test_weights_of_a_slots_ranks_add_up_to_no_more_than_a_whole_slots(compute: int, ranks: int, memory: int) -> None:
    grant = slot_grant(Slice("1.1", 0, compute, memory, ranks=ranks))
    assert not grant.env and not grant.idle
    assert grant.weight * ranks <= max(compute, ranks) and bool(grant.weight) == bool(compute)
    best_effort = slot_grant(Slice("1.1", 0, compute, memory, "be", ranks))
    assert best_effort.idle and not best_effort.weight and not best_effort.compute


def test_a_slot_says_its_means_from_the_strongest_to_the_one_that_needs_nothing() -> None:
    backend = cpu.CpuBackend("n1", (0,), 1, 8 * GIB)
    first = backend.share(Slice("1.1", 0, 300, GIB))
    assert levels(first.compute) == ["cpu weights", COUNTED_ONLY] and levels(first.memory) == [COUNTED_ONLY]
    assert levels(first.share_class) == ["idle sharers"] and first.weight == 300
    second = backend.share(Slice("2.1", 0, share_class="be"))
    assert levels(second.share_class) == ["idle group", "least weight", "idle policy"]


# -- GPUs -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 2**45), st.integers(1, 2**45), st.integers(1, 64))
def test_processes_together_never_get_more_than_the_share(share: int, device: int, sharers: int) -> None:
    part = fraction(share, device, sharers)
    assert 0 <= part < 1
    assert part == 0.001 or round(part * 1000) * device * sharers <= share * 1000


def test_a_share_of_memory_is_said_to_frameworks_and_all_of_it_is_no_limit() -> None:
    assert memory_variables(12 * GIB, 40 * GIB)["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.3"
    assert memory_variables(12 * GIB, 40 * GIB, 2)["TIDEWRIGHT_GPU_MEMORY_MIB"] == "6144"
    assert memory_variables(0, 40 * GIB) == memory_variables(40 * GIB, 40 * GIB) == {}


@pytest.mark.parametrize(
    ("milli", "ranks", "percent"), [(300, 1, "30"), (300, 2, "15"), (1, 1, "0.1"), (0, 1, None), (1000, 1, None)]
)
def test_a_share_of_compute_is_said_to_mps_whether_it_runs_or_not(milli: int, ranks: int, percent: str | None) -> None:
    for mps in (None, MPS):
        grant = gpu_grant(Slice("1.1", 0, milli, ranks=ranks), 40 * GIB, mps)
        assert grant.env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == percent and not grant.weight


def test_what_nothing_enforces_is_counted_only() -> None:
    without = gpu_grant(Slice("1.1", 0, 300), 40 * GIB, None)
    assert levels(without.compute) == levels(without.share_class) == [COUNTED_ONLY]
    assert "equal time slices" in without.compute[0].text
    best_effort = gpu_grant(Slice("1.1", 0, 300, share_class="be"), 40 * GIB, None)
    assert not best_effort.compute and levels(best_effort.share_class) == [COUNTED_ONLY]


def test_with_mps_best_effort_has_the_lower_priority_and_all_multiprocessors() -> None:
    first = gpu_grant(Slice("1.1", 0, 300), 40 * GIB, MPS)
    assert (
        levels(first.compute) == ["mps"]
        and "30 %" in first.compute[0].text
        and levels(first.share_class) == ["mps priority"]
    )
    assert first.env == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30", "CUDA_MPS_PIPE_DIRECTORY": str(MPS)}
    second = gpu_grant(Slice("1.1", 0, 300, share_class="be"), 40 * GIB, MPS)
    assert second.env == {"CUDA_MPS_CLIENT_PRIORITY": "1", "CUDA_MPS_PIPE_DIRECTORY": str(MPS)}
    assert "hint" in second.share_class[0].text
    usual = gpu_grant(Slice("1.1", 0, 300), 40 * GIB, Path(share_grants.DEFAULT_PIPES))
    assert usual.env == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}, "where clients look by themselves"


def test_mps_is_looked_for_where_the_agents_variables_say_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    backend, part = nvidia.open_backend("n1", nvml=PaperDriver(H100)), Slice("1.1", 0, 300)
    assert levels(backend.share(part).compute) == [COUNTED_ONLY]
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind("control")
        assert levels(backend.share(part).compute) == [COUNTED_ONLY], "a daemon that was killed leaves its socket"
        daemon.listen(1)
        grant = backend.share(part)
        assert levels(grant.compute) == ["mps"] and grant.env["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path)
    assert levels(backend.share(part).compute) == [COUNTED_ONLY]
