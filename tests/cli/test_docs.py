"""docs/cli.md says what the commands' help says."""

from __future__ import annotations

import runpy

import pytest


def test_the_page_is_fresh(pytestconfig: pytest.Config) -> None:
    tool = runpy.run_path(str(pytestconfig.rootpath / "tools" / "make_cli_docs.py"))
    assert tool["PAGE"].read_text() == tool["page"](), "run python tools/make_cli_docs.py"
