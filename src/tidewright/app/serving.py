"""Serving models, for commands: how a replica of a model is started, the gateway, and what it says of itself."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import Unreachable, UsageError
from ..serve.batching.registry import make_batcher
from ..serve.gateway.main import ADDRESS, SOCKET
from ..serve.gateway.main import run_gateway as run_gateway
from ..serve.replica.link import GATEWAY, OPTIONS, ServingOptions

MIN_TOKEN = 16


def replica_command(
    state: Path, service: str, model: str, objective_us: int, batching: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command and variables of a replica that runs ``model`` (``module:name``). 0 and "": the defaults. Raises UsageError."""
    options = ServingOptions(service=service, model=model)
    options = msgspec.structs.replace(
        options, objective_us=objective_us or options.objective_us, batching=batching or options.batching
    )
    make_batcher(options.batching, options.objective_us)  # a policy that there is not is said now
    serving = {GATEWAY: str(state.absolute() / SOCKET), OPTIONS: msgspec.json.encode(options).decode()}
    return (sys.executable, "-m", "tidewright.serve.replica.main"), serving


def read_token(path: Path) -> str:
    """The token in a file that only its owner can read. Raises UsageError."""
    if path.stat().st_mode & 0o077:
        raise UsageError(f"{path} can be read by others", f"chmod 600 {path}")
    token = path.read_text().strip()
    if len(token) < MIN_TOKEN:
        raise UsageError(f"{path} holds a token of {len(token)} characters", f"use one of at least {MIN_TOKEN}")
    return token


def gateway_status(state: Path) -> dict[str, Any]:
    """What the gateway of a state directory says of its services. Raises Unreachable; UsageError where it asks for a token."""
    try:
        address = (state / ADDRESS).read_text().strip()
        with urllib.request.urlopen(f"http://{address}/v1/gateway", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise UsageError(
            f"the gateway answers {error.code}: it asks for a token", "ask it with curl and the token"
        ) from None
    except (OSError, ValueError):
        raise Unreachable("no gateway runs on this state directory", "start it with tide serve gateway") from None
    return found
