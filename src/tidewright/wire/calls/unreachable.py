"""What a client says when its controller gives no answer: whose fault that is, and what to do about it."""

from __future__ import annotations

import http.client
import os
import ssl
from pathlib import Path

from ...base.errors import NotAllowed, TideError, Unreachable, UsageError
from ..api import SOCKET_NAME
from ..holder import CONTROLLER_LOCK, held, holder
from ..state_files import name_of
from ..trust import untrusted


def unreachable(state: Path, url: str | None, error: Exception) -> TideError:
    """The error for a request that ``error`` ended; ``url`` is None where the controller is reached by ``state``'s socket."""
    if (why := untrusted(error)) is not None:
        return UsageError(f"{url or state} is not trusted: {why}", "give its issuer's certificate with --tls-ca")
    if url is not None:
        return Unreachable(f"no controller answers at {url} ({error})", _remedy_far(url, error))
    if isinstance(error, PermissionError):
        return _not_allowed(state)
    if held(state / CONTROLLER_LOCK):
        found = holder(state / CONTROLLER_LOCK)
        pid = f" (pid {found.pid})" if found else ""
        return Unreachable(f"the controller of {state}{pid} runs, but does not answer ({error})", stays_so(state, url))
    return Unreachable(f"no controller answers at {state} ({error})", "start it with tide up")


def stays_so(state: Path, url: str | None) -> str:
    """What to do about a controller that runs, and does not answer."""
    where = f"{state}/controller.log" if url is None else "controller.log on its machine"
    return f"if it stays so, see {where}; tide down ends it (jobs run on), tide up starts another"


def _not_allowed(state: Path) -> NotAllowed:
    """Only the user whose controller it is may connect to its socket."""
    user, remedy = name_of(os.geteuid()), "choose a directory of your own with --state or TIDE_STATE"
    try:
        owner = state.stat().st_uid
    except OSError:
        return NotAllowed(f"{user} may not look into {state}, or into a directory above it", remedy)
    if owner == os.geteuid():
        mend = f"chmod u+rwx {state} && chmod u+rw {state}/{SOCKET_NAME}"
        return NotAllowed(f"the modes of {state} or of the socket in it do not let {user} connect", mend)
    return NotAllowed(
        f"{state} belongs to {name_of(owner)}, and {user} may not connect to a controller there",
        f"run tide as {name_of(owner)}; use its address and token, --url and --token-file (tide up --listen); or {remedy}",
    )


def _remedy_far(url: str, error: Exception) -> str:
    """What to do about an address that does not answer: a listener with TLS hangs up on what is not TLS, and the reverse."""
    if isinstance(error, ssl.SSLError):
        return "if it serves without TLS, write http://"
    cut = isinstance(error, (http.client.HTTPException, ConnectionError)) and not isinstance(
        error, ConnectionRefusedError
    )
    if cut and not url.startswith("https:"):
        return "if it serves by TLS (tide up --tls-cert), write https://"
    return "see on its machine that it runs and listens there: tide up --listen HOST:PORT"
