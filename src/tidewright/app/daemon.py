"""The controller's process: ``python -m tidewright.app.daemon --state DIR``. ``tide up`` starts it detached."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import logging
import os
import sys
from pathlib import Path

from ..base.errors import DiskFull, TideError
from ..base.units import parse_bytes, parse_duration
from ..live.controller.disk_space import is_full
from ..wire.connections import raise_open_files
from ..wire.log_limit import LogLimit
from ..wire.own_directory import DirectoryLost, to_system_log
from . import hosts, remembered
from .compose import DaemonSettings, build_controller
from .jobspec import fields
from .settings import Settings, load_settings, overridden

log = logging.getLogger("tidewright.daemon")


def _arguments(argv: list[str] | None) -> DaemonSettings:
    parser = argparse.ArgumentParser(
        prog="tidewright.app.daemon",
        description="The Tidewright controller; what is not given comes from STATE/config.yaml.",
    )
    parser.add_argument("--state", type=Path, required=True, help="state directory")
    parser.add_argument("--policy", help="scheduling policy, with settings: las:round=6m")
    parser.add_argument("--listen", metavar="HOST:PORT", help="serve over TCP too, with the token of STATE/token")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain for --listen, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="key of the certificate, PEM, readable by its owner only")
    parser.add_argument(
        "--jobs-as", metavar="USER", help="unix account that jobs run as; root must name one to --listen"
    )
    parser.add_argument("--slots", type=int, help="CPU slots of this machine (default: one per core)")
    parser.add_argument("--backend", help="device backend of the agent: auto, cpu, nvidia, fake")
    parser.add_argument("--host", metavar="NAME[=SLOTS[:CORES]]", action="append", default=[], help="an agent to keep")
    parser.add_argument("--hosts", type=int, default=0, help="keep so many agents, the cores dealt out among them")
    parser.add_argument(
        "--agent-socket", metavar="PATH", action="append", default=[], help="an agent that is supervised elsewhere"
    )
    parser.add_argument("--images", metavar="URL", help="where copies of job images go")
    parser.add_argument("--image-quota", metavar="SIZE", help="most bytes of images on each node (default: no limit)")
    parser.add_argument(
        "--log-limit", metavar="SIZE", help="most bytes of each rank's log, 0: no limit (default: 1GiB)"
    )
    parser.add_argument("--node-timeout", metavar="TIME", help="a node away for longer is down (default: 30s)")
    parser.add_argument("--reset", action="store_true", help="inherit no options and agents of earlier starts")
    return _chosen(parser.parse_args(argv))


def _chosen(given: argparse.Namespace) -> DaemonSettings:
    """The command line over what earlier starts were given, and that over config.yaml."""
    state = given.state.absolute()
    now = {name: str(value) for name in remembered.NAMES if (value := getattr(given, name)) not in (None, "")}
    options = remembered.merged({} if given.reset else remembered.recall(state), now)
    chosen = _settled(state, options)
    agents = hosts.chosen(given.host, given.hosts, given.agent_socket, chosen.slots)
    if agents is None:
        agents = hosts.Agents() if given.reset else hosts.resized(hosts.recall(state), given.slots or 0)

    def started() -> None:
        try:
            hosts.remember(state, agents)
            remembered.remember(state, options)
        except OSError as error:  # a full disk; the next start gets its options again, or those of the last one
            log.warning("the options of this start are not remembered: %s", error)

    return DaemonSettings(
        state, chosen.policy, chosen.listen, chosen.slots, chosen.backend, chosen.engine,
        agents, chosen.images, chosen.node_timeout_us, chosen.image_quota, chosen.log_limit,
        (chosen.tls_cert, chosen.tls_key), chosen.jobs_as, started,
        forecast_check_us=chosen.forecast_check_us, rate_check_us=chosen.rate_check_us,
        mail=chosen.mail,
    )  # fmt: skip


def _settled(state: Path, options: dict[str, str]) -> Settings:
    """The settings of config.yaml with these options over them."""
    known = {name: "" if value == remembered.NONE else value for name, value in options.items()}
    settings, slots = load_settings(state), options.get("slots")
    timeout, quota = known.get("node_timeout"), known.get("image_quota")
    chosen = overridden(
        settings, policy=known.get("policy"), slots=int(slots) if slots else None, backend=known.get("backend"),
        node_timeout_us=parse_duration(timeout) if timeout else None,
        image_quota=parse_bytes(quota) if quota else None,
        log_limit=fields.log_limit(known["log_limit"]) if "log_limit" in known else None,
    )  # fmt: skip
    return dataclasses.replace(
        chosen, **{name: known.get(name, getattr(settings, name)) for name in remembered.ENDED_BY_NONE}
    )


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal or a request to stop. Returns the exit code: 0 after an orderly stop, else that of the error."""
    os.umask(0o077)
    logging.raiseExceptions = False  # on a full disk a line is lost, and no traceback takes its place
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger().handlers[0].addFilter(LogLimit())
    try:
        controller = build_controller(dataclasses.replace(_arguments(argv), open_files=raise_open_files()))
        # What is loaded by now stays for good: the collector need not look at it again.
        gc.freeze()
        asyncio.run(controller.serve())
    except TideError as error:
        if isinstance(error, DirectoryLost):
            to_system_log(str(error))
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return DiskFull.exit_code if is_full(error) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
