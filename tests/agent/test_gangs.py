"""Ranks of a gang on this node, held for cuts that other nodes lead."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidewright.agent.checkpointing.gang import Gangs
from tidewright.base.errors import WorldError
from tidewright.launch.inject._tidewright.page import HOLD_FILE

KEY = 1, 1


async def granted(key: tuple[int, int], cut: int | None) -> None:
    """The machine has nothing against it."""


def gangs(folder: Path) -> Gangs:
    return Gangs("token", lambda key: {0: folder} if key == KEY else None, granted, lambda *decision: None)


def asked(serial: int | None) -> dict[str, object]:
    sent = {} if serial is None else {"serial": serial}
    return {"job": 1, "attempt": 1, "cuts": {"phase": 1}, **sent}


def test_a_release_that_comes_late_does_not_release_ranks_held_for_another_cut(tmp_path: Path) -> None:
    """Its leader has given the cut up and goes on; the ranks would be imaged while they train."""
    verbs, held = gangs(tmp_path).handlers(), tmp_path / "ctl" / HOLD_FILE

    async def hear() -> None:
        await verbs["hold"](asked(2))
        await verbs["hold"](asked(3))
        for verb in ("free", "cuts"):
            with pytest.raises(WorldError, match="cut 2 is over"):
                await verbs[verb](asked(2))
        assert held.exists()
        await verbs["cuts"](asked(3))
        await verbs["free"](asked(3))

    asyncio.run(hear())
    assert not held.exists()


@pytest.mark.parametrize("serial", [None, 4])
def test_leaders_of_earlier_versions_name_no_cut(tmp_path: Path, serial: int | None) -> None:
    verbs, held = gangs(tmp_path).handlers(), tmp_path / "ctl" / HOLD_FILE

    async def hear() -> None:
        await verbs["hold"](asked(serial))
        assert held.exists()
        await verbs["free"](asked(None))

    asyncio.run(hear())
    assert not held.exists()
