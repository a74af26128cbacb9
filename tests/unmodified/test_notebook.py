"""A Jupyter kernel as a job: suspended while nobody executes a cell, it has its variables when somebody does again."""

from __future__ import annotations

import contextlib
import queue
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unmodified.harness import user_environment
from tests.unmodified.pool import Pool
from tests.unmodified.test_programs import full_images
from tidewright.model.job import JobSpec

pytestmark = [pytest.mark.processes, full_images]
jupyter_client = pytest.importorskip("jupyter_client", reason="no jupyter_client here")
pytest.importorskip("ipykernel", reason="no ipykernel here")

PATIENCE_S = 60
MANY = 20
SET_UP = """
import hashlib, torch
torch.manual_seed(5)
net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(128, 4))
optimizer = torch.optim.AdamW(net.parameters())
digest = hashlib.sha256()

def train(steps):
    print("training", flush=True)
    for _ in range(steps):
        inputs = torch.randn(64, 64)
        loss = torch.nn.functional.cross_entropy(net(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.update(repr(loss.item()).encode())

def state():
    whole = digest.copy()
    kept = [value for held in optimizer.state.values() for value in held.values()]
    for tensor in [*net.state_dict().values(), *kept, torch.get_rng_state()]:
        whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()
"""
CELL = "train(3000)"


class Notebook:
    """A client of a kernel that runs as ``job``."""

    def __init__(self, pool: Pool, name: str, *options: str) -> None:
        self.pool, self.file = pool, pool.root / f"{name}.json"
        command = (sys.executable, "-m", "ipykernel_launcher", "-f", str(self.file), *options)
        spec = JobSpec(name=name, command=command, env=user_environment(pool.root), workdir=str(pool.root))
        self.job = pool.client().submit([spec]).ids[0]
        pool.until(lambda: self.file.exists() and self.file.read_text().rstrip().endswith("}"))
        self.client: Any = None
        self.connect()

    def connect(self) -> None:
        self.client = jupyter_client.BlockingKernelClient(connection_file=str(self.file))
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)

    def disconnect(self) -> None:
        self.client.stop_channels()

    def be_heard(self) -> None:
        """Ask until output comes, too: a client subscribes anew after a reset, later than it can send (a nudge)."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self.client.kernel_info()
            with contextlib.suppress(queue.Empty):
                self.client.get_iopub_msg(timeout=0.3)
                return
        raise AssertionError("no output of the kernel arrives")

    def run(self, code: str) -> str:
        """Execute a cell; what it printed."""
        out: list[str] = []
        reply = self.client.execute_interactive(
            code, timeout=PATIENCE_S, output_hook=lambda message: out.append(message["content"].get("text", ""))
        )
        assert reply["content"]["status"] == "ok", reply
        return "".join(out).strip()

    def begin(self, code: str) -> None:
        """Have a cell executed, and wait no longer than until it prints something."""
        self.client.execute(code)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if self.client.get_iopub_msg(timeout=PATIENCE_S)["msg_type"] == "stream":
                return
        raise AssertionError("the cell prints nothing")

    def suspend(self) -> None:
        def held() -> bool:
            view = self.pool.view(self.job)
            assert view.level == "full", view.level_why
            return view.state in ("held", "suspended")

        self.pool.client().suspend(self.job)
        self.pool.until(held)

    def resume(self) -> None:
        self.pool.client().resume(self.job)
        self.pool.until(lambda: self.pool.view(self.job).state == "running")


@pytest.mark.parametrize(
    ("transport", "connected"),
    [
        ("tcp", True),
        pytest.param("tcp", False, marks=pytest.mark.full),
        pytest.param("ipc", False, marks=pytest.mark.full),
    ],
    ids=["tcp-connected", "tcp", "ipc"],
)
def test_an_idle_kernel_keeps_its_variables(pool: Pool, transport: str, connected: bool) -> None:
    """A client over loopback may stay connected: it finds its connections reset, and makes new ones by itself."""
    name = f"notebook-{transport}-{connected}"
    notebook = Notebook(pool, name, *([] if transport == "tcp" else ["--transport=ipc", f"--ip={pool.root}/{name}"]))
    notebook.run("import os, threading; kept = [os.getpid(), {'a': 1}]; lock = threading.Lock()")
    for number in range(2):
        if not connected:
            notebook.disconnect()
            time.sleep(0.2)
        notebook.suspend()
        notebook.resume()
        if not connected:
            notebook.connect()
        notebook.be_heard()
        said = notebook.run(f"kept[1]['a'] += {number}; print(kept[0] == os.getpid(), kept[1], lock.locked())")
        assert said == f"True {{'a': {1 + number}}} False"
    notebook.disconnect()
    pool.client().cancel(notebook.job)


def test_a_kernel_moves_to_the_other_host(pool: Pool) -> None:
    notebook = Notebook(pool, "notebook-moved")
    notebook.run("x = 41")
    pool.migrate(notebook.job, random.Random(1))
    notebook.be_heard()
    assert notebook.run("print(x + 1)") == "42"
    notebook.client.shutdown()
    pool.until(lambda: pool.view(notebook.job).state == "completed")
    notebook.disconnect()


def cells_alone(root: Path) -> str:
    """What the same cells come to as a plain program."""
    code = "\n".join([SET_UP, *[CELL] * MANY, "print(state())"])
    done = subprocess.run(
        [sys.executable, "-c", code], env=user_environment(root), capture_output=True, text=True, check=True
    )
    return done.stdout.split()[-1]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_many_events_change_no_number_of_a_notebook(pool: Pool) -> None:
    """Every other one while a cell is being executed, whose numbers are then looked at by the next."""
    pytest.importorskip("torch", reason="no PyTorch here")
    dice = random.Random(11)
    notebook = Notebook(pool, "notebook-many")
    notebook.run(SET_UP)
    for number in range(MANY):
        if number % 2:
            notebook.begin(CELL)
        else:
            notebook.run(CELL)
        dice.choice((pool.suspend, pool.migrate))(notebook.job, dice)
        view = pool.view(notebook.job)
        assert view.level == "full", view.level_why
        notebook.be_heard()
    assert notebook.run("print(state())") == cells_alone(pool.root)
    notebook.disconnect()
    pool.client().cancel(notebook.job)
