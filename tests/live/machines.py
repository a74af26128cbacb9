"""Machines made of namespaces: each has a network and a /home of its own, and nothing in common but one directory.

All of it lives below processes that the test started; when those end, the kernel takes it down.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.command import tide
from tidewright.base.errors import TideError
from tidewright.checkpoint.processes import PROC, send
from tidewright.wire.api import JobView
from tidewright.wire.client import Client

PATIENCE_S = 90.0


def possible() -> str:
    """Why such machines cannot be made here; empty when they can."""
    if os.geteuid() != 0:
        return "needs root"
    probe = "ip link add twp0 type veth peer name twp1 && mount -t tmpfs none /mnt"
    done = subprocess.run(["unshare", "-n", "-m", "sh", "-c", probe], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"no namespaces: {done.stderr.strip()}"


class Machine:
    """``own`` is a directory that every machine has at the same path with other contents."""

    def __init__(self, number: int, own: Path, shared: Path, switch: int) -> None:
        self.name, self.address, self.own, self.shared = f"m{number}", f"10.77.0.{number}", own, shared
        self.socket = shared / f"{self.name}.sock"
        cores = sorted(os.sched_getaffinity(0))
        self._core = cores[number % len(cores)]
        self._holder = subprocess.Popen(["unshare", "-n", "-m", "--propagation", "private", "sleep", "1000"])
        self._wire(number, switch)
        self.run("mount", "-t", "tmpfs", "own", str(own))
        for name in ("state", "work"):
            self.run("mkdir", str(own / name))
        self.agent: subprocess.Popen[bytes] | None = None

    def _wire(self, number: int, switch: int) -> None:
        until(lambda: os.readlink(f"/proc/{self._holder.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"))
        inside, outside = f"e{number}", f"v{number}"
        on_switch = ("nsenter", "-t", str(switch), "-n", "ip", "link")
        check(*on_switch, "add", outside, "type", "veth", "peer", "name", inside)
        check(*on_switch, "set", inside, "netns", str(self._holder.pid))
        check(*on_switch, "set", outside, "master", "switch", "up")
        self.run("ip", "addr", "add", f"{self.address}/24", "dev", inside)
        self.run("ip", "link", "set", inside, "up")
        self.run("ip", "link", "set", "lo", "up")

    def enter(self, *command: str) -> list[str]:
        return ["nsenter", "-t", str(self._holder.pid), "-n", "-m", *command]

    def run(self, *command: str) -> str:
        """The output of a command in the machine."""
        return check(*self.enter(*command))

    def start(self, slots: int) -> None:
        """Its agent, which nothing supervises."""
        argv = [
            sys.executable, "-m", "tidewright.agent", "--state", str(self.own / "state"), "--name", self.name,
            "--address", self.address, "--token-file", str(self.shared / "token"), "--socket", str(self.socket),
            "--slots", str(slots), "--backend", "cpu", "--cores", str(self._core),
        ]  # fmt: skip
        with (self.shared / f"{self.name}.log").open("ab") as out:
            self.agent = subprocess.Popen(self.enter(*argv), stdout=out, stderr=out, cwd="/")

    def processes(self) -> list[int]:
        """Everything in its mount namespace or one made inside it, but for what holds it."""
        network = os.readlink(f"/proc/{self._holder.pid}/ns/net")
        found = []
        for entry in PROC.iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns" / "net") == network:
                    found.append(int(entry.name))
        return [pid for pid in found if pid != self._holder.pid]

    def kill(self) -> None:
        """Agent and ranks, at once."""
        for _ in range(5):
            send(self.processes(), signal.SIGKILL)
            time.sleep(0.02)
        if self.agent is not None:
            self.agent.wait(10)

    def close(self) -> None:
        if self._holder.poll() is None:
            self.kill()
            self._holder.kill()
        self._holder.wait()


class Site:
    """A controller, and machines that it reaches through sockets in ``shared``."""

    def __init__(self, root: Path, machines: int, slots: int) -> None:
        self.root, self.state = root, root / "state"
        self.own, self.shared = root / "own", root / "shared"
        for path in (self.own, self.shared):
            path.mkdir()
        token = self.shared / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(16))
        self._switch = subprocess.Popen(["unshare", "-n", "sleep", "1000"])
        until(lambda: os.readlink(f"/proc/{self._switch.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
        inside = ("nsenter", "-t", str(self._switch.pid), "-n", "ip", "link")
        check(*inside, "add", "switch", "type", "bridge")
        check(*inside, "set", "switch", "up")
        self.machines = [Machine(number, self.own, self.shared, self._switch.pid) for number in range(1, machines + 1)]
        for machine in self.machines:
            machine.start(slots)
        sockets = [word for machine in self.machines for word in ("--agent-socket", str(machine.socket))]
        self.tide("up", *sockets, "--node-timeout", "2s", "--policy", "fifo")
        self.until(lambda: len([node for node in self.client().nodes().nodes if node.state == "up"]) == machines)

    def tide(self, *arguments: str) -> str:
        done = tide(self.state, *arguments, cwd=self.root)
        assert done.returncode == 0, done.stdout + done.stderr + self.story()
        return done.stdout

    def client(self) -> Client:
        return Client(self.state, timeout=20)

    def job(self, job: int) -> JobView:
        return self.client().job(job)

    def where(self, job: int) -> list[str]:
        """Where the job runs; nowhere while it does not."""
        view = self.job(job)
        return sorted(place.node for place in view.where) if view.state == "running" else []

    def until(self, true: Callable[[], bool]) -> None:
        try:
            until(true)
        except AssertionError:
            raise AssertionError(self.story()) from None

    def story(self) -> str:
        """What the daemons and the jobs have to say."""
        found = []
        with contextlib.suppress(TideError):
            for job in self.client().jobs(all=True).jobs:
                lines = "\n".join(f"  {line.what} {line.why}" for line in self.job(job.id).story)
                found.append(f"job {job.id} {job.state} on {job.where}: {job.why}\n{lines}")
        paths = [self.state / "controller.log", *self.shared.glob("*.log")]
        found += [f"{path.name}:\n{path.read_text()[-3000:]}" for path in paths if path.exists()]
        show = f"tail -n 25 {self.own}/state/agent.log {self.own}/state/logs/*/* 2>/dev/null || true"
        with contextlib.suppress(AssertionError):
            found += [machine.run("sh", "-c", show) for machine in self.machines]
        return "\n".join(found)

    def close(self) -> None:
        with contextlib.suppress(TideError, AssertionError):
            for job in self.client().jobs().jobs:
                self.client().cancel(job.id)
            until(lambda: not self.client().jobs().jobs, 20)
        with contextlib.suppress(AssertionError):
            self.tide("down")
        for machine in self.machines:
            machine.close()
        self._switch.kill()
        self._switch.wait()


def check(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def until(true: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(TideError, OSError):
            if true():
                return
        time.sleep(0.02)
    raise AssertionError("never")
