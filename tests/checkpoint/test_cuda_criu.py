"""The whole way of a rank on a GPU: real processes and real CRIU, and a driver without devices for their memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.site import Site, chain
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cuda.checkpoint import CudaState
from tidewright.checkpoint.cuda.driver import GpuDriver, beside_devices, facts_of, seat_of
from tidewright.checkpoint.cuda.fake import FakeCuda
from tidewright.testing.checkpoint import check_driver

pytestmark = pytest.mark.processes
HERE, THERE = ("GPU-00000000-0000-0000-0000-00000000000a",), ("GPU-00000000-0000-0000-0000-00000000000b",)


def inner_pid(pid: int) -> str:
    """The pid inside the rank's namespace, which it keeps when it is restored; "" for none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next(line.split()[-1] for line in lines if line.startswith("NSpid:"))


def device_for(gang, devices=HERE) -> FakeCuda:
    """A driver that the main process of a gang of one uses."""
    api = FakeCuda(devices, identity=inner_pid)
    api.start(gang.ranks[0].pid)
    return api


def test_the_gpu_driver_passes_the_kit_over_criu(site: Site):
    gang = site.start()
    api = device_for(gang)
    driver = GpuDriver(
        site.driver("a"), lambda: api.devices, api=lambda: api, able=beside_devices, living=lambda _: site.handles[-1:]
    )
    check_driver(driver, gang, "a", lambda: len(site.output("a")), "h100")
    assert [call for call, _ in api.calls] == ["lock", "checkpoint", "restore", "unlock"]


def test_from_one_node_to_another_device_of_another(site: Site, tmp_path: Path):
    """What agents do: dump, end, restore by a shim, restore the devices."""
    (tmp_path / "dumped").mkdir()
    gang = site.start()
    api = device_for(gang)
    source = GpuDriver(site.driver("a"), lambda: HERE, api=lambda: api, able=beside_devices)
    assert source.can(gang, "h100").ok
    source.dump(gang.ranks, tmp_path / "dumped", leave_running=False)
    source.finish(gang.ranks)
    facts = facts_of(HERE, HERE)
    api.devices = THERE
    target = GpuDriver(site.driver("b"), lambda: api.devices, api=lambda: api)
    directory = site.launch("b", restore=target.restore_spec(tmp_path / "dumped" / "0"))
    back = [site.handle(directory)]
    assert api.state(back[0].pid) is CudaState.CHECKPOINTED, "it has come back without devices"
    target.restore_devices(back, {0: seat_of(facts, THERE)})
    assert api.state(back[0].pid) is CudaState.RUNNING and api.on(back[0].pid) == THERE
    lines = site.output("b")
    assert lines == chain(len(lines)) and lines


def test_a_dump_that_fails_gives_the_devices_back(site: Site, tmp_path: Path):
    gang = site.start()
    api = device_for(gang)
    driver = GpuDriver(site.driver("a"), lambda: HERE, api=lambda: api)
    (tmp_path / "dumped").mkdir()
    (tmp_path / "dumped" / "0").symlink_to("/proc/nowhere")
    with pytest.raises(WorldError):
        driver.dump(gang.ranks, tmp_path / "dumped", leave_running=False)
    assert api.state(gang.ranks[0].pid) is CudaState.RUNNING
