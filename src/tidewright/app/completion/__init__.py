"""app.completion: names that a shell completes without a controller. Loads nothing big: a shell waits for it."""

from __future__ import annotations

from pathlib import Path


def policy_names() -> list[str]:
    """Policies, those of plug-ins too."""
    from ...policy.registry import policies

    return policies.names()


def runtime_names(state: Path) -> list[str]:
    """Device runtimes that have a socket in a state directory, whether or not they answer."""
    return sorted(path.parent.name for path in (state / "runtimes").glob("*/socket"))
