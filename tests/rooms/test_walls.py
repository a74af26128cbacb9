"""Rooms import only what their card names, and no card is wider than the house allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from .house import PACKAGE, WIDEST, Source, card, rooms, sources
from .imports import loaded_by, outside, room_of, through_the_wall


def own_card(room: str) -> frozenset[str]:
    found = card((PACKAGE / room / "__init__.py").read_text())
    assert found is not None, f"{room}/__init__.py has no literal MAY_IMPORT"
    return found


@pytest.mark.parametrize("room", rooms())
def test_card_is_not_wider_than_the_house(room: str) -> None:
    assert room in WIDEST, f"{room} is not a room of the house"
    assert own_card(room) <= WIDEST[room], f"{room} claims {sorted(own_card(room) - WIDEST[room])}"


@pytest.mark.parametrize("room", rooms())
def test_room_says_what_it_is_for(room: str) -> None:
    text = (PACKAGE / room / "__init__.py").read_text()
    assert text.startswith(f'"""{room}: ')


@pytest.mark.parametrize("room", rooms())
def test_no_import_through_the_wall(room: str) -> None:
    bad = [line for source in sources() if source.room == room for line in through_the_wall(source, own_card(room))]
    assert not bad, "\n".join(bad)


def test_only_rooms_lie_in_the_package() -> None:
    files = {file.name for file in PACKAGE.glob("*.py")}
    assert files <= {"__init__.py", "__main__.py"}


def test_the_widest_cards_have_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(WIDEST):
        ready = {room for room, may in WIDEST.items() if room not in done and may <= done}
        assert ready, f"a cycle among {sorted(set(WIDEST) - done)}"
        done |= ready


def test_nobody_may_import_testing() -> None:
    assert not [room for room, may in WIDEST.items() if "testing" in may]


def test_base_needs_only_the_standard_library() -> None:
    assert not [line for source in sources() if source.room == "base" for line in outside(source)]


INJECT = "launch/inject/"


def over_torch(source: Source) -> bool:
    """Whether a file of the wrapper is written over torch: then it is loaded only once the program has torch."""
    return source.path.startswith(INJECT) and any("torch" in line for line in outside(source, frozenset({"torch"})))


def test_launch_needs_only_the_standard_library_and_torch_when_called() -> None:
    mine = [source for source in sources() if source.room == "launch"]
    plain = [line for source in mine if not over_torch(source) for line in outside(source, frozenset({"torch"}))]
    assert not [line for line in plain if line.split()[1].split(".")[0] != "_tidewright"]  # its own package, by path
    bad = [line for source in mine if over_torch(source) for line in outside(source)]
    assert all(line.split()[1].split(".")[0] == "torch" for line in bad), "\n".join(bad)


def test_the_wrapper_loads_no_torch_and_starts_without_the_package() -> None:
    inject = PACKAGE / "launch" / "inject"
    begun = [
        path.stem
        for path in (inject / "_tidewright").glob("*.py")
        if path.stem in ("hooks", "patches", "process_control")
    ]
    assert len(begun) == 3
    loaded = loaded_by(["sitecustomize", *(f"_tidewright.{name}" for name in begun)], [str(inject)])
    assert "_tidewright" in loaded and not loaded & {"torch", "tidewright", "numpy"}


def test_wire_loads_neither_numpy_nor_a_server() -> None:
    names = [source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for source in sources()]
    wire = [f"tidewright.{name}" for name in names if name.split(".")[0] == "wire"]
    assert wire
    assert not loaded_by(wire) & {"numpy", "starlette", "uvicorn", "rich"}


def test_an_agent_starts_without_numpy() -> None:
    """Half of the time of its start; the store of images brings it, once there are any."""
    assert not loaded_by(["tidewright.agent.main"]) & {"numpy", "starlette", "uvicorn", "rich"}


PLANTED = [
    "from ..live import loop",
    "from tidewright.live import loop",
    "import tidewright.live.controller.loop",
    "import tidewright.live.controller.loop as l",
    "from .. import live",
    "from tidewright import live",
    "from tidewright import Client",
    "import tidewright",
    "from tidewright import *",
    "def f():\n    from ..live.loop import run",
    "if TYPE_CHECKING:\n    from ..live import loop",
    "try:\n    import tidewright.live\nexcept ImportError:\n    pass",
    "import_module('tidewright.live.controller.loop')",
    "importlib.import_module('tidewright.live')",
    "__import__('tidewright.live')",
]


@pytest.mark.parametrize("text", PLANTED)
def test_a_planted_import_is_caught(text: str) -> None:
    assert through_the_wall(Source("engine/planted.py", text), frozenset({"base", "model"}))


def test_a_planted_import_from_deeper_folders_is_caught() -> None:
    assert through_the_wall(Source("sim/traces/philly.py", "from ...live import loop"), frozenset({"base"}))
    assert not through_the_wall(Source("sim/traces/philly.py", "from ..agenda import Agenda"), frozenset({"base"}))


@pytest.mark.parametrize(
    "text",
    ["from ..base.ids import new_op_id", "from . import book", "import numpy", "from tidewright import __version__"],
)
def test_allowed_imports_pass(text: str) -> None:
    assert not through_the_wall(Source("engine/planted.py", text), frozenset({"base", "model"}))


def test_a_wide_or_missing_card_is_seen() -> None:
    assert card("MAY_IMPORT: tuple[str, ...] = ('base', 'live')") == {"base", "live"}
    assert not frozenset({"base", "live"}) <= WIDEST["engine"]
    assert card('"""engine"""') is None
    assert card("MAY_IMPORT = tuple(everything())") is None
    assert room_of("tidewright.live.controller.loop") == "live"


def test_planted_third_party_imports_are_caught(tmp_path: Path) -> None:
    assert outside(Source("base/planted.py", "import numpy"))
    assert outside(Source("launch/planted.py", "import torch"), frozenset({"torch"}))
    assert not outside(Source("launch/planted.py", "def f():\n    import torch"), frozenset({"torch"}))
    (tmp_path / "planted_wire.py").write_text("import numpy\n")
    assert "numpy" in loaded_by(["planted_wire"], [str(tmp_path)])
