"""A gateway without a controller and replicas started by hand, as processes, and what asks them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec

from tidewright.serve.replica.link import GATEWAY, OPTIONS, ServingOptions

GATEWAY_CODE = """
import json, sys
from pathlib import Path
from tidewright.app.serving import run_gateway
from tidewright.wire.connections import Limits
limits = Limits(**json.loads(sys.argv[3])) if sys.argv[3:] else None
run_gateway(Path(sys.argv[1]), "127.0.0.1:0", None, sys.argv[2], 100_000, limits)
"""


class Serving:
    """A gateway without a controller, and replicas started by hand."""

    def __init__(self, state: Path, **limits: float) -> None:
        self.state, self.processes = state, list[subprocess.Popen[bytes]]()
        self.gateway = self._start(
            [sys.executable, "-c", GATEWAY_CODE, str(state), "", *([json.dumps(limits)] if limits else [])], {}
        )
        self.until(lambda: (state / "serve.address").exists())

    def _start(self, command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.state / "log").open("ab") as out:
            started = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **env}, cwd=Path(__file__).parents[2]
            )
        self.processes.append(started)
        return started

    def replica(self, model: str, job: int = 1, **options: Any) -> subprocess.Popen[bytes]:
        name = options.pop("service", model)
        env = options.pop("env", {})
        serving = ServingOptions(
            service=name, model=f"tests.serve.models:{model}", **{"objective_us": 2_000_000, **options}
        )
        variables = {GATEWAY: str(self.state / "serve.sock"), OPTIONS: msgspec.json.encode(serving).decode()}
        before = self.ready(name)
        started = self._start(
            [sys.executable, "-m", "tidewright.serve.replica.main"], {**variables, **env, "TIDE_JOB_ID": str(job)}
        )
        self.until(lambda: self.ready(name) > before)
        return started

    def ready(self, name: str) -> int:
        services = self.ask("GET", "/v1/gateway")[1]["services"]
        return next((one["replicas"] for one in services if one["name"] == name), 0)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        host, port = (self.state / "serve.address").read_text().split(":")
        connection = HTTPConnection(host, int(port), timeout=20)
        data = json.dumps(body) if isinstance(body, dict) else body
        try:
            connection.request(method, path, data, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        found = json.loads(text) if text[:1] == b"{" else text
        return answer.status, found, {name.lower(): value for name, value in answer.getheaders()}

    def infer(self, model: str, value: float, items: int = 1, **headers: str) -> tuple[int, Any, dict[str, str]]:
        one = {"name": "x", "shape": [items, 3], "datatype": "FP32", "data": [value] * 3 * items}
        return self.ask("POST", f"/v2/models/{model}/infer", {"inputs": [one]}, **headers)

    def until(self, true: Any, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if true():
                return
            time.sleep(0.02)
        raise AssertionError((self.state / "log").read_text()[-3000:])

    def close(self) -> None:
        for one in self.processes:
            one.kill()
            one.wait()

    def log(self) -> str:
        return (self.state / "log").read_text()

    def waiting(self, name: str) -> int:
        """Requests of a service that wait."""
        return next(one["waiting"] for one in self.ask("GET", "/v1/gateway")[1]["services"] if one["name"] == name)

    def requests(self, name: str) -> dict[str, int]:
        """Requests of a service by how they ended."""
        services = self.ask("GET", "/v1/gateway")[1]["services"]
        return next(one["requests"] for one in services if one["name"] == name)

    def connect(self, data: bytes = b"") -> socket.socket:
        """A connection of a client, on which so much was sent."""
        host, port = (self.state / "serve.address").read_text().split(":")
        made = socket.create_connection((host, int(port)), timeout=20)
        made.sendall(data)
        return made


def request_bytes(model: str, value: float, *headers: str) -> bytes:
    """An inference request as it stands on a connection."""
    one = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [value] * 3}
    body = json.dumps({"inputs": [one]}).encode()
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
