"""Nobody below the run loops asks the clock, the dice, the environment, the disk or the order of a set."""

from __future__ import annotations

import pytest

from .bans import QUIET_ROOMS, banned, is_quiet
from .house import Source, rooms, sources


@pytest.mark.parametrize("room", [room for room in QUIET_ROOMS if room in rooms()])
def test_quiet_rooms_are_quiet(room: str) -> None:
    bad = [line for source in sources() if source.room == room and is_quiet(source) for line in banned(source)]
    assert not bad, "\n".join(bad)


PLANTED = [
    "import time\nnow = time.time()",
    "import time as clock\nnow = clock.monotonic_ns()",
    "from time import perf_counter\nnow = perf_counter()",
    "from time import time as now\nx = now()",
    "from datetime import datetime\nnow = datetime.now()",
    "import datetime\nnow = datetime.datetime.utcnow()",
    "import random\nx = random.random()",
    "import random\nr = random.Random()",
    "from random import shuffle\nshuffle(items)",
    "import numpy as np\nx = np.random.rand(3)",
    "import numpy as np\nr = np.random.default_rng()",
    "import os\nhome = os.environ['HOME']",
    "from os import environ\nhome = environ.get('HOME')",
    "import os\nhome = os.getenv('HOME')",
    "import secrets\nx = secrets.token_hex()",
    "import uuid\nx = uuid.uuid4()",
    "import socket",
    "from subprocess import run",
    "import asyncio",
    "print('hello')",
    "file = open('x')",
    "text = path.read_text()",
    "key = hash(name)",
    "for x in {1, 2}:\n    pass",
    "for x in set(items):\n    pass",
    "y = [x for x in frozenset(items)]",
    "y = {x: 1 for x in {a for a in items}}",
    "y = list(set(items))",
    "y = tuple({1, 2})",
    "y = ','.join({'a', 'b'})",
    "jobs = set()\nfor job in jobs:\n    pass",
    "def f(jobs: set[int]):\n    for job in jobs:\n        pass",
    "class A:\n    def f(self):\n        self.dirty: set[int] = set()\n        for x in self.dirty:\n            pass",
    "for x in a.keys() - b.keys():\n    pass",
    "jobs = set()\nfor job in jobs | other:\n    pass",
    "jobs = set()\nfor job in jobs.union(other):\n    pass",
    "jobs = set()\njob = jobs.pop()",
    "jobs = set()\ndef f():\n    for job in jobs:\n        pass",
    "total = sum(x for x in {0.1, 0.2})",
]


@pytest.mark.parametrize("text", PLANTED)
def test_a_planted_offence_is_caught(text: str) -> None:
    source = Source("engine/planted.py", text)
    assert is_quiet(source)
    assert banned(source)


HARMLESS = [
    "import random\ndef f(rng: random.Random) -> None: ...",
    "import random\nr = random.Random(7)",
    "import numpy as np\nr = np.random.default_rng(7)",
    "import numpy as np\ndef f(rng: np.random.Generator) -> None: ...",
    "for x in sorted({1, 2}):\n    pass",
    "for x in sorted(set(items)):\n    pass",
    "y = sorted(x.name for x in {1, 2})",
    "y = {x for x in {1, 2}}",
    "found = 3 in {1, 2, 3}",
    "items = [1]\nfor x in items:\n    pass",
    "table = {1: 2}\nfor x in table:\n    pass",
    "last = stack.pop()",
    "def f():\n    x = set()\n    return x\ndef g(x: list):\n    for y in x:\n        pass",
    "mask = a | b\nfor x in bits(mask):\n    pass",
    "from datetime import timedelta\nx = timedelta(1)",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_code_passes(text: str) -> None:
    assert not banned(Source("engine/planted.py", text))


def test_loops_and_edges_are_not_quiet() -> None:
    assert not is_quiet(Source("sim/run.py", ""))
    assert not is_quiet(Source("sim/traces/philly.py", ""))
    assert not is_quiet(Source("live/controller/loop.py", ""))
    assert is_quiet(Source("sim/runner.py", ""))


def test_the_exception_holds_for_its_file_alone() -> None:
    text = "import secrets\nx = secrets.token_hex(16)"
    assert not banned(Source("base/ids.py", text))
    assert banned(Source("base/rng.py", text))
