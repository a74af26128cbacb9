"""Time slices under the wrapper: a data-parallel job that shares devices, cut at random moments, with K changing at each."""

from __future__ import annotations

import contextlib
import json
import os
import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launch.gang import Gang, harass

pytestmark = [pytest.mark.processes, pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch here")]
PORT = 23_460


class Sharing(Gang):
    """Ranks in time slices by lock, on a random number of devices that changes with each reach.json."""

    def __init__(self, *args, seed: int, **how) -> None:
        super().__init__(*args, **how)
        self._rng = random.Random(seed)
        self.devices: dict[int, int] = {}
        self.slots = self.place / "slots"
        self.slots.mkdir()
        self.environ["TIDE_SLOTS"] = str(self.slots)

    def reach(self, rank: int, host: str) -> None:
        super().reach(rank, host)
        if rank == 0:
            count = self._rng.randint(1, self.size)
            self.devices = {each: each % count for each in self.rank_dirs}
        device = self.devices[rank]
        share = list(self.devices.values()).count(device)
        path = self.rank_dirs[rank] / "reach.json"
        found = {**json.loads(path.read_text()), "devices": [device], "share": share, "turns": "lock"}
        (self.rank_dirs[rank] / "reach.new").write_text(json.dumps(found))
        os.replace(self.rank_dirs[rank] / "reach.new", path)


def open_slot_files(gang: Sharing) -> list[str]:
    """Files of slots that a rank has open."""
    found = []
    for page in (state for party in gang.parties() for state in party.read() if not state.dead):
        for file in Path(f"/proc/{page.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed just now, by a thread of the program's own
                link = os.readlink(file)
                found += [link] if link.startswith(str(gang.slots)) else []
    return found


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 3])
def test_time_slices_change_no_bit_and_end_at_a_cut(tmp_path, monkeypatch, size):
    program = ["ddp.py", "60", "accumulate"]
    alone = Gang(tmp_path / "alone", size, program, wrapped=False)
    gang = Sharing(tmp_path / "shared", size, program, seed=size)
    try:
        alone.start(PORT + size)
        expected = alone.wait()
        gang.start(PORT + 10 + size)
        held: list[str] = []
        monkeypatch.setattr("tests.launch.gang.check_disconnected", lambda each: held.extend(open_slot_files(each)))
        reports = harass(gang, seed=size, cuts=4)
        assert gang.wait() == expected, gang.logs()
        assert reports and held == []
    finally:
        alone.end()
        gang.end()
    assert sorted(gang.slots.iterdir()), "time slices were taken"
