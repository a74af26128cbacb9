"""The place where concrete classes meet: which planner, which fabric, which agents make up a controller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from .. import __version__
from ..agent.processes.log_cap import LIMIT_BYTES
from ..base.units import SECOND
from ..engine.settings import EngineSettings, live_settings
from ..estimate.goodput import fit
from ..estimate.learnt_rates import RateHistory
from ..fabric.heartbeat import silence_s
from ..fabric.local import LocalFabric
from ..fabric.protocol import Fabric
from ..fabric.several import SeveralFabric
from ..live.controller.agent_supervisor import LocalAgent
from ..live.controller.forecast_probe import EVERY_US
from ..live.controller.main import Controller, ControllerSettings
from ..live.controller.notifier import Notifier
from ..live.controller.rate_probe import EVERY_US as RATES_EVERY_US
from ..notify.mail import MailSettings
from ..notify.outbox import FILE as OUTBOX
from ..policy.registry import make
from ..wire.state_files import make_private
from .access import check_access
from .explainer import ProcessExplainer
from .hosts import Agents, Host, cluster_token

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class DaemonSettings:
    """What ``tide up`` may choose. ``slots`` 0: as many as the machine has cores; ``images`` is where copies of images
    go (any fsspec URL; empty: from node to node), ``image_quota`` how many bytes of them a node keeps (0: no limit),
    ``log_limit`` how many bytes of each rank's log (0: all)."""

    state: Path
    policy: str = "sla"
    listen: str = ""
    slots: int = 0
    backend: str = "auto"
    engine: EngineSettings | None = None
    agents: Agents = field(default_factory=Agents)
    images: str = ""
    node_timeout_us: int = 30 * SECOND
    image_quota: int = 0
    log_limit: int = LIMIT_BYTES
    tls: tuple[str, str] = ("", "")
    """Certificate chain and key for ``listen``; empty: no TLS."""
    jobs_as: str = ""
    """The unix account that jobs run as; empty: this process's own."""
    started: Callable[[], None] = lambda: None
    """Called once the controller serves: what it was given is then known to work."""
    open_files: int = 0
    """Soft limit of open files of the agents started here; 0: the controller's own."""
    forecast_check_us: int = EVERY_US
    rate_check_us: int = RATES_EVERY_US
    mail: MailSettings = field(default_factory=MailSettings)


def build_controller(settings: DaemonSettings) -> Controller:
    """A controller of this machine, with its agents. Raises UsageError for an unknown policy."""
    make_private(settings.state)
    check_access(settings.listen, settings.tls, settings.jobs_as)
    planner, agents = make(settings.policy), local_agents(settings)
    sockets = [*(agent.socket for agent in agents), *map(Path, settings.agents.sockets)]

    def fabric() -> Fabric:
        bound_s = silence_s(settings.node_timeout_us)
        return LocalFabric(sockets[0], bound_s) if len(sockets) == 1 else SeveralFabric(sockets, bound_s)

    return Controller(
        ControllerSettings(
            state=settings.state,
            planner=planner,
            fabric=fabric,
            engine=settings.engine or live_settings(),
            policy=settings.policy,
            version=__version__,
            explainer=lambda: ProcessExplainer(settings.policy, planner),
            rate_learner=lambda: RateHistory(fit if find_spec("scipy") else None),
            listen=settings.listen,
            agents=agents,
            others=len(settings.agents.sockets),
            node_timeout_us=settings.node_timeout_us,
            tls=settings.tls,
            run_as=settings.jobs_as,
            started=settings.started,
            forecast_check_us=settings.forecast_check_us,
            rate_check_us=settings.rate_check_us,
            notifier=_notifier(settings),
        )
    )


def _notifier(settings: DaemonSettings) -> Notifier:
    argv = [sys.executable, "-m", "tidewright.notify", "--state", str(settings.state), *settings.mail.argv]
    # Without TCP only the user of the controller, and root, submit jobs: they may ask this machine for anything anyhow.
    return Notifier((*argv, *([] if settings.listen else ["--loopback"])), bool(settings.mail.smtp), OUTBOX)


def local_agents(settings: DaemonSettings) -> tuple[LocalAgent, ...]:
    """The agents that the controller supervises: the hosts; without hosts and sockets, one for this machine."""
    hosts = settings.agents.hosts
    if not hosts and not settings.agents.sockets:
        return (LocalAgent(settings.state, _argv(settings, settings.state, settings.slots), settings.open_files),)
    return tuple(_host(settings, host) for host in hosts)


def _host(settings: DaemonSettings, host: Host) -> LocalAgent:
    state = settings.state / "hosts" / host.name
    argv = _argv(settings, state, host.slots or (len(host.cores) if host.cores else settings.slots))
    argv += ["--name", host.name, "--address", LOOPBACK, "--token-file", str(cluster_token(settings.state))]
    if host.cores:
        argv += ["--cores", ",".join(map(str, host.cores))]
    return LocalAgent(state, argv, settings.open_files)


def _argv(settings: DaemonSettings, state: Path, slots: int) -> list[str]:
    argv = [sys.executable, "-m", "tidewright.agent", "--state", str(state), "--backend", settings.backend]
    argv += ["--controller", str(settings.state)]
    if slots:
        argv += ["--slots", str(slots)]
    if settings.images:
        argv += ["--images", settings.images]
    if settings.log_limit != LIMIT_BYTES:
        argv += ["--log-limit", str(settings.log_limit)]
    return [*argv, "--quota", str(settings.image_quota)] if settings.image_quota else argv
