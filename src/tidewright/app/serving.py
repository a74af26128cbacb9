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
from ..live.api.auth import TokenAuth
from ..live.api.auth import read_token as read_token
from ..live.api.server import tcp_socket
from ..serve.batching.registry import make_batcher
from ..serve.gateway.main import ADDRESS, SOCKET, serve_gateway
from ..serve.gateway.scaling import ServiceController
from ..serve.replica.link import GATEWAY, OPTIONS, ServingOptions
from ..wire.connections import Limits
from ..wire.state_files import make_private
from ..wire.trust import is_loopback

MAX_BODY = 64 * 2**20


def replica_command(
    state: Path, service: str, model: str, objective_us: int, batching: str, idempotent: bool, from_image: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command and variables of a replica that runs ``model`` (``module:name``). 0 and "": the defaults. Raises UsageError."""
    options = ServingOptions(service=service, model=model, idempotent=idempotent, from_image=from_image)
    options = msgspec.structs.replace(
        options, objective_us=objective_us or options.objective_us, batching=batching or options.batching
    )
    make_batcher(options.batching, options.objective_us)  # a policy that there is not is said now
    serving = {GATEWAY: str(state.absolute() / SOCKET), OPTIONS: msgspec.json.encode(options).decode()}
    return (sys.executable, "-m", "tidewright.serve.replica.main"), serving


def run_gateway(
    state: Path,
    listen: str,
    controller: ServiceController | None,
    token: str = "",
    max_body: int = MAX_BODY,
    limits: Limits | None = None,
) -> None:
    """Take requests on a loopback ``HOST:PORT`` until SIGTERM or SIGINT. ``token``: what they must bring as bearer; empty:
    nothing. ``limits``: of clients' connections; None: as open files allow. Raises UsageError,
    and Conflict where a gateway of the state directory runs already."""
    host = listen.rpartition(":")[0].strip("[]")
    if host and not is_loopback(host):
        raise UsageError(
            f"{listen} is not a loopback address, and requests would go in clear", "put a proxy with TLS before it"
        )
    make_private(state)
    with tcp_socket(listen) as listening:
        serve_gateway(
            state, listening, controller, lambda app: TokenAuth(app, token) if token else app, max_body, limits
        )


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
