"""The controller's process: ``python -m tidewright.app.daemon --state DIR``. ``tide up`` starts it detached."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys
from pathlib import Path

from ..base.errors import TideError
from .compose import DaemonSettings, build_controller
from .settings import load_settings, overridden

log = logging.getLogger("tidewright.daemon")


def _arguments(argv: list[str] | None) -> DaemonSettings:
    parser = argparse.ArgumentParser(
        prog="tidewright.app.daemon",
        description="The Tidewright controller; what is not given comes from STATE/config.yaml.",
    )
    parser.add_argument("--state", type=Path, required=True, help="state directory")
    parser.add_argument("--policy", help="scheduling policy, with settings: las:round=6m")
    parser.add_argument("--listen", metavar="HOST:PORT", help="serve over TCP too, with the token of STATE/token")
    parser.add_argument("--slots", type=int, help="CPU slots of this machine (default: one per core)")
    parser.add_argument("--backend", help="device backend of the agent: auto, cpu, nvidia, fake")
    given = parser.parse_args(argv)
    state = given.state.absolute()
    chosen = overridden(
        load_settings(state), policy=given.policy, listen=given.listen, slots=given.slots, backend=given.backend
    )
    return DaemonSettings(state, chosen.policy, chosen.listen, chosen.slots, chosen.backend, chosen.engine)


def main(argv: list[str] | None = None) -> int:
    """Serve until told to stop. Returns the exit code: 0 after an orderly stop, else that of the error."""
    os.umask(0o077)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    try:
        controller = build_controller(_arguments(argv))
        # What is loaded by now stays for good: the collector need not look at it again.
        gc.freeze()
        asyncio.run(controller.serve())
    except TideError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
