"""``python -m tidewright.agent --state DIR``: run this node's agent in the foreground."""

from __future__ import annotations

import argparse
import re
import socket
import sys
from pathlib import Path

from ..base.errors import TideError
from .main import run_agent


def node_name() -> str:
    """This host's name, made fit to be a node's."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("._-")[:128] or "local"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tidewright.agent", description="Run this node's agent.")
    parser.add_argument("--state", required=True, type=Path, help="state directory")
    parser.add_argument("--slots", type=int, default=0, help="CPU slots (default: one per core)")
    parser.add_argument("--backend", default="auto", help="auto, cpu, nvidia, fake or a plugin's name (default: auto)")
    parser.add_argument("--name", default=node_name(), help="name of this node (default: the host's)")
    given = parser.parse_args()
    try:
        run_agent(given.state, given.backend, given.slots, given.name)
    except TideError as error:
        print(f"tidewright.agent: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
