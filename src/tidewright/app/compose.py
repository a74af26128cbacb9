"""The place where concrete classes meet: which planner, which fabric, which agent make up a controller."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..engine.settings import EngineSettings, live_settings
from ..fabric.local import LocalFabric
from ..live.main import Controller, ControllerSettings
from ..policy.registry import make


@dataclass(frozen=True)
class DaemonSettings:
    """What ``tide up`` may choose. ``slots`` 0: as many as the machine has cores."""

    state: Path
    policy: str = "sla"
    listen: str = ""
    slots: int = 0
    backend: str = "auto"
    engine: EngineSettings | None = None


def build_controller(settings: DaemonSettings) -> Controller:
    """A controller of this machine, with its agent. Raises UsageError for an unknown policy."""
    return Controller(
        ControllerSettings(
            state=settings.state,
            planner=make(settings.policy),
            fabric=lambda: LocalFabric(settings.state / "agent.sock"),
            engine=settings.engine or live_settings(),
            policy=settings.policy,
            version=__version__,
            listen=settings.listen,
            agent_argv=agent_argv(settings),
        )
    )


def agent_argv(settings: DaemonSettings) -> list[str]:
    """The command line of the local agent."""
    argv = [sys.executable, "-m", "tidewright.agent", "--state", str(settings.state), "--backend", settings.backend]
    return [*argv, "--slots", str(settings.slots)] if settings.slots else argv
