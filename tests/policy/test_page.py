"""The example on the policy page works as printed."""

import re
from pathlib import Path

from tidewright.testing.policies import check_policy

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def example() -> str:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0]


def test_the_example_passes_the_kit():
    names: dict = {}
    exec(compile(example(), str(PAGE), "exec"), names)
    check_policy(names["SmallestFirst"])


def test_the_class_is_short():
    assert len([queue for queue in example().split("class ")[1].splitlines() if queue.strip()]) <= 15
