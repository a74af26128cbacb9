"""The typed Python client: one method per request, over the controller's unix socket or TCP with a token.

Only the standard library and msgspec, so that a command that asks one question starts fast.
"""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from ..base.errors import Busy, Conflict, DiskFull, NotFound, TideError, UsageError, WorldError
from ..base.ids import new_op_id
from ..model.job import JobSpec
from . import api
from .calls.completion import WordCalls
from .calls.job_changes import JobChangeCalls
from .calls.job_refs import ArrayCalls, job_path, with_query
from .calls.job_refs import Ref as Ref
from .calls.notify import NotifyCalls
from .calls.submit_request import submit_request
from .calls.unreachable import stays_so, unreachable
from .holder import CONTROLLER_LOCK, held
from .services import ServiceCalls
from .trust import connect_unix, https_connection, is_loopback, refuse_stranger

T = TypeVar("T")
WAIT_POLL_S = 50.0
"""Longest time the controller lets one ``wait`` request hang."""
_ERRORS: dict[str, type[UsageError]] = {"notfound": NotFound, "conflict": Conflict, "full": DiskFull, "busy": Busy}


def default_state() -> Path:
    """The state directory: TIDE_STATE, else ``$XDG_STATE_HOME/tidewright``, else ``~/.local/state/tidewright``."""
    given = os.environ.get("TIDE_STATE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "tidewright"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        connect_unix(self.sock, self._path)
        refuse_stranger(self.sock, self._path)


class Client(ServiceCalls, ArrayCalls, JobChangeCalls, NotifyCalls, WordCalls):
    """Speaks to one controller: ``Client()`` to the default state directory's, ``Client(url=…, token=…)`` over TCP.

    ``ca``: PEM file that an https URL is verified by; TIDE_CA, else the system's certificates.

    Every method raises Unreachable when no controller answers (NotAllowed: this user may not connect), and NotFound, Conflict or
    UsageError (with ``remedy``) when it refuses; questions raise Busy. Not safe to share between threads.
    """

    def __init__(
        self, state: str | Path | None = None, url: str | None = None, token: str | None = None, timeout: float = 30.0,
        ca: str | Path | None = None,
    ) -> None:  # fmt: skip
        self.state = Path(state) if state is not None else default_state()
        self.url = url
        self.timeout = timeout
        self._ca = str(ca or os.environ.get("TIDE_CA") or "")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._kept: http.client.HTTPConnection | None = None
        self._socket_wait_s = min(3.0, timeout)
        """Seconds to wait, in all, for a socket that is missing while its controller runs."""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connection; a later call opens a new one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    # -- jobs ------------------------------------------------------------------------------------------------------

    def submit(
        self, specs: Sequence[JobSpec], dry_run: bool = False, op_id: str = "", after: Sequence[str] = ()
    ) -> api.SubmitReply:
        """Submit jobs; when it returns they are on disk. Several specs are one array or sweep. They wait for what ``after`` says,
        such as ``afterok:prep``."""
        body = submit_request(specs, after, op_id or new_op_id(), dry_run)
        return self._ask("POST", "/v1/jobs", api.SubmitReply, body, wait=len(specs) / 100)

    def jobs(
        self,
        all: bool = False,
        state: str | None = None,
        team: str | None = None,
        name: str | None = None,
        user: str | None = None,
        limit: int = 0,
        collapse: bool = False,
    ) -> api.JobList:
        """Live jobs, with ``all`` the ended ones too. ``state``: names separated by commas; ``limit`` 0: no limit; ``collapse``:
        one entry for the members of an array that wait alike."""
        query = {
            "all": int(all) or None,
            "state": state,
            "team": team,
            "name": name,
            "user": user,
            "limit": limit or None,
            "collapse": int(collapse) or None,
        }
        return self._ask("GET", "/v1/jobs", api.JobList, query=query)

    def job(self, ref: Ref) -> api.JobView:
        """Everything about one job; ``ref`` is its id or a unique name. Of several members of an array the first that waits."""
        return self._ask("GET", job_path(ref), api.JobReply).job

    def why(self, ref: Ref, changes: bool = True) -> api.WhyView:
        """Why a job is where it is, and the smallest changes that would start it, which may take seconds to find."""
        return self._ask("GET", job_path(ref, "/why"), api.WhyView, query={} if changes else {"changes": 0})

    def eta(self, ref: Ref) -> api.EtaView:
        """When a job starts and ends, with intervals that hold eight of ten futures."""
        return self._ask("GET", job_path(ref, "/eta"), api.EtaView)

    def suspend(self, ref: Ref, until_us: int = 0) -> api.ActionReply:
        """Suspend a job, so that it releases its devices, until ``resume`` or an absolute time."""
        body = api.SuspendRequest(until_us=until_us, op_id=new_op_id())
        return self._ask("POST", job_path(ref, "/suspend"), api.ActionReply, body)

    def resume(self, ref: Ref) -> api.ActionReply:
        """End a hold; the job runs again when a plan gives it devices."""
        return self._ask("POST", job_path(ref, "/resume"), api.ActionReply, api.ActionRequest(op_id=new_op_id()))

    def migrate(self, ref: Ref, to: Sequence[str] = ()) -> api.ActionReply:
        """Bring a running job to these nodes (none given: anywhere but where it is), without losing a step."""
        body = api.MoveRequest(to=tuple(to), op_id=new_op_id())
        return self._ask("POST", job_path(ref, "/migrate"), api.ActionReply, body)

    def scale(self, ref: Ref, devices: int) -> api.ActionReply:
        """Have a job run on so many devices, neither more nor fewer, until the next request; 0: as submitted."""
        body = api.ScaleRequest(devices=devices, op_id=new_op_id())
        return self._ask("POST", job_path(ref, "/scale"), api.ActionReply, body)

    def checkpoint(self, ref: Ref) -> api.ActionReply:
        """Take an image of a running job now; it runs on."""
        return self._ask("POST", job_path(ref, "/checkpoint"), api.ActionReply, api.ActionRequest(op_id=new_op_id()))

    def cancel(self, ref: Ref) -> api.ActionReply:
        """End a job, whatever it is doing."""
        return self._ask("POST", job_path(ref, "/cancel"), api.ActionReply, api.ActionRequest(op_id=new_op_id()))

    def wait(self, ref: Ref, timeout: float | None = None) -> api.WaitReply:
        """Block until a job has ended or ``timeout`` seconds have passed; look at ``final`` in the answer."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_POLL_S if until is None else max(0.0, min(WAIT_POLL_S, until - time.monotonic()))
            reply = self._ask("GET", job_path(ref, "/wait"), api.WaitReply, query={"timeout": f"{left:.3f}"}, wait=left)
            if reply.final or (until is not None and time.monotonic() >= until):
                return reply

    def logs(
        self, ref: Ref, rank: int | None = 0, follow: bool = False, tail: int | None = None, attempt: int = 0
    ) -> Iterator[bytes]:
        """A rank's output over all its attempts, or of one; ``tail`` starts that many lines before the end, ``follow`` goes on
        until the job has ended. ``rank`` None: every rank's, as lines that begin with ``[rank N]``."""
        whose = {"all_ranks": 1} if rank is None else {"rank": rank}
        query = {**whose, "follow": int(follow) or None, "tail": tail, "attempt": attempt or None}
        with self._stream(job_path(ref, "/logs"), query) as answer:
            while chunk := answer.read1(65536):
                yield chunk

    # -- pool ------------------------------------------------------------------------------------------------------

    def nodes(self) -> api.NodeList:
        """Every node and what is on it."""
        return self._ask("GET", "/v1/nodes", api.NodeList)

    def drain(self, node: str, why: str = "", move: bool = False) -> api.ActionReply:
        """Keep new work off a node; ``move``: jobs that can go on elsewhere with all their work leave it."""
        body = api.DrainRequest(op_id=new_op_id(), why=why, move=move)
        return self._ask("POST", f"/v1/nodes/{quote(node, safe='')}/drain", api.ActionReply, body)

    def undrain(self, node: str) -> api.ActionReply:
        """Let new work onto a node again."""
        body = api.ActionRequest(op_id=new_op_id())
        return self._ask("POST", f"/v1/nodes/{quote(node, safe='')}/undrain", api.ActionReply, body)

    def usage(self, by: str = "team") -> api.UsageReply:
        """GPU-seconds held and delivered, by ``team``, ``user`` or ``tier``."""
        return self._ask("GET", "/v1/usage", api.UsageReply, query={"by": by})

    def rates(self, workload: str = "") -> api.RatesReply:
        """How fast workloads run on which devices: what is declared, and what their jobs have shown."""
        return self._ask("GET", "/v1/rates", api.RatesReply, query={"workload": workload} if workload else {})

    def forget_rates(self, workload: str) -> api.ActionReply:
        """What jobs have shown of a workload holds no longer; they are learnt from anew. Raises NotFound where nothing was."""
        body = api.ForgetRatesRequest(workload=workload, op_id=new_op_id())
        return self._ask("POST", "/v1/rates/forget", api.ActionReply, body)

    def top(self) -> api.TopView:
        """The pool at a glance, with measured loads."""
        return self._ask("GET", "/v1/top", api.TopView)

    def events(self, last: str = "", over: Callable[[], bool] = lambda: False) -> Iterator[api.JobEvent]:
        """State changes as they happen, without end; with ``last``, those after that ``seq`` first. ``over``, asked at every line
        (there is one every 15 s), ends them."""
        headers = {"last-event-id": last} if last else {}
        with self._stream("/v1/events", {}, headers) as answer:
            data: list[bytes] = []
            for line in answer:
                if over():
                    return
                if line.startswith(b"data:"):
                    data.append(line[5:].strip())
                elif not line.strip() and data:
                    yield msgspec.json.decode(b"\n".join(data), type=api.JobEvent)
                    data = []

    # -- controller ------------------------------------------------------------------------------------------------

    def info(self) -> api.Info:
        """The controller itself."""
        return self._ask("GET", "/v1/info", api.Info)

    def journal(self, with_environment: bool = False, redact: bool = False) -> Iterator[bytes]:
        """The journal as newline-delimited JSON records, for ``tide replay``; the values of jobs' environments on demand.

        ``redact``: with pseudonyms for every word of users; it replays to the same result.
        """
        asked = {"environment": int(with_environment) or None, "redact": int(redact) or None}
        with self._stream("/v1/journal", asked) as answer:
            while chunk := answer.read1(65536):
                yield chunk

    def metrics(self) -> str:
        """Prometheus exposition text."""
        with self._stream("/metrics", {}) as answer:
            return answer.read().decode()

    def shutdown(self) -> api.Done:
        """Stop the controller and its agent; jobs run on."""
        return self._ask("POST", "/v1/shutdown", api.Done)

    # -- transport -------------------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: msgspec.Struct | None = None,
        query: dict[str, Any] | None = None,
        wait: float = 0.0,
    ) -> T:
        payload = None if body is None else msgspec.json.encode(body)
        answer = self._request(method, with_query(path, query), payload, self.timeout + wait)
        data = answer.read()
        if answer.status >= 400:
            raise _failure(answer, data)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"the controller's answer was not understood: {error}", "do versions match? see tide version"
            ) from None

    def _request(self, method: str, target: str, body: bytes | None, timeout: float) -> http.client.HTTPResponse:
        """One exchange on the kept connection; opened anew once when the controller had closed it while idle."""
        new_connection = self._kept is None
        connection = self._kept = self._kept or self._connection(timeout)
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        try:
            connection.request(method, target, body, {"content-type": "application/json", **self._headers})
            return connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            self.close()
            # Sent twice at worst: every request that changes something carries its op_id.
            if new_connection:
                raise self._unreachable(error) from None
            return self._request(method, target, body, timeout)
        except TimeoutError:
            self.close()
            said = f"no answer within {timeout:.0f} s from the controller of {self.url or self.state}"
            raise WorldError(f"{said}; {stays_so(self.state, self.url)}") from None
        except FileNotFoundError as error:
            self.close()
            if self.url is None and self._socket_wait_s > 0 and held(self.state / CONTROLLER_LOCK):
                # A socket whose file was deleted is made again within a second (socket_file).
                self._socket_wait_s -= 0.1
                time.sleep(0.1)
                return self._request(method, target, body, timeout)
            raise self._unreachable(error) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from None

    @contextmanager
    def _stream(
        self, path: str, query: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer of unknown length on a connection of its own, closed at the end."""
        connection = self._connection(None)
        try:
            connection.request("GET", with_query(path, query), headers={**self._headers, **(headers or {})})
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _failure(answer, answer.read())
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        if self.url is None:
            return _UnixConnection(self.state / api.SOCKET_NAME, timeout)
        https, host, port = _address(self.url)
        if https:
            return https_connection(host, port, timeout, self._ca)
        if self._headers and not is_loopback(host):
            raise UsageError(
                f"{self.url} is not encrypted: the token would be sent over the network in clear",
                "write https://, or reach 127.0.0.1 through an SSH tunnel",
            )
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _unreachable(self, error: Exception) -> TideError:
        return unreachable(self.state, self.url, error)


def _address(url: str) -> tuple[bool, str, int | None]:
    """(whether TLS, host, port) of ``http://HOST:PORT`` or ``HOST:PORT``."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts.scheme == "https", parts.hostname, parts.port
    except ValueError:
        pass
    raise UsageError(f"not an address of a controller: {url!r}", "write it like http://127.0.0.1:7700")


def _failure(answer: http.client.HTTPResponse, data: bytes) -> TideError:
    try:
        body = msgspec.json.decode(data, type=api.ErrorBody)
    except msgspec.DecodeError:
        text = data[:200].decode(errors="replace")
        return UsageError(
            f"the controller answered {answer.status}: {text}", "look into controller.log of the state directory"
        )
    kind = _ERRORS.get(body.code, UsageError)
    error = kind(body.error, body.remedy)
    again = answer.getheader("retry-after") or ""
    if isinstance(error, Busy) and again.isdecimal():
        error.retry_s = float(again)
    error.cause = body.cause
    return error
