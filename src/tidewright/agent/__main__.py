"""``python -m tidewright.agent --state DIR``: run this node's agent in the foreground."""

from __future__ import annotations

import argparse
import re
import socket
import sys
from pathlib import Path

from ..base.errors import TideError
from ..base.units import parse_bytes
from ..wire.own_directory import DirectoryLost, to_system_log
from .main import AgentSettings, run_agent
from .processes.log_cap import LIMIT_BYTES
from .processes.rank_spec import controller_variables


def node_name() -> str:
    """This host's name, made fit to be a node's."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("._-")[:128] or "local"


def cores(text: str) -> tuple[int, ...]:
    """``0-3,8`` as numbers (the list format of cpuset(7))."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def size(text: str) -> int:
    """``200GiB`` in bytes."""
    try:
        return parse_bytes(text)
    except TideError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tidewright.agent", description="Run this node's agent.")
    parser.add_argument("--state", required=True, type=Path, help="state directory")
    parser.add_argument("--slots", type=int, default=0, help="CPU slots (default: one per core)")
    parser.add_argument("--backend", default="auto", help="auto, cpu, nvidia, fake or a plugin's name (default: auto)")
    parser.add_argument("--name", default=node_name(), help="name of this node (default: the host's)")
    parser.add_argument("--cores", type=cores, default=(), help="cores its CPU slots are made of, e.g. 0-3,8")
    parser.add_argument("--address", default="127.0.0.1", help="where other nodes reach this one (default: loopback)")
    parser.add_argument("--token-file", type=Path, help="secret shared by the agents of a cluster (default: its own)")
    parser.add_argument("--socket", type=Path, help="where to listen for the controller (default: STATE/agent.sock)")
    parser.add_argument(
        "--controller", default="", help="which controller ranks' own tide commands reach: DIR, or a URL"
    )
    parser.add_argument("--controller-token", default="", help="file with the token for a URL, which jobs may read")
    parser.add_argument("--controller-ca", default="", help="certificates that an https URL is verified by")
    parser.add_argument("--images", default="", help="URL that images are copied to, e.g. s3://bucket/images")
    parser.add_argument("--quota", type=size, default=0, help="most bytes of images kept here (default: no limit)")
    parser.add_argument(
        "--log-limit", type=size, default=LIMIT_BYTES, help="most bytes of each rank's log (0: no limit)"
    )
    given = parser.parse_args()
    settings = AgentSettings(
        state=given.state,
        name=given.name,
        backend=given.backend,
        slots=given.slots,
        cores=given.cores,
        address=given.address,
        token_file=given.token_file,
        socket=given.socket,
        controller=controller_variables(given.controller, given.controller_token, given.controller_ca),
        remote=given.images,
        quota_bytes=given.quota,
        log_limit=given.log_limit,
    )
    try:
        run_agent(settings)
    except TideError as error:
        if isinstance(error, DirectoryLost):
            to_system_log(str(error))
        print(f"tidewright.agent: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"tidewright.agent: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
