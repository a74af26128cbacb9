"""Bad input, models that misbehave, processes that are killed: the client concerned gets an error, the others notice nothing."""

from __future__ import annotations

import array
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tidewright.base.errors import Conflict, NotFound, Unreachable, UsageError
from tidewright.runtime.client import RemoteModel, RuntimeClient, TaskFailed, ask, connect
from tidewright.runtime.transport import messages as ms
from tidewright.testing.runtime_models import chain_result

from .conftest import RunningRuntime, Start, children_of, entry_of, until

pytestmark = pytest.mark.processes
MODELS = "tidewright.testing.runtime_models"
ONE = np.array([1.0])
ZERO = np.array([0.0])


@pytest.fixture(scope="module")
def runtime(start_runtime: Start) -> RunningRuntime:
    return start_runtime("--task-timeout", "1", "--worker-memory", "200MiB", "--memory", "64MiB")


def load(client: RuntimeClient, name: str, **more: object) -> RemoteModel:
    return client.load(f"{MODELS}:{name}", [("float64", (1,))], arguments=more)  # type: ignore[arg-type]


class Bystander:
    """Another client that is at work all the time, and whose results must be right throughout."""

    def __init__(self, path: Path, kind: str = "be") -> None:
        self.client = RuntimeClient(path, kind, name="bystander")  # type: ignore[arg-type]
        self.model = self.client.load(f"{MODELS}:chain", [("float64", (200,))])
        self.done, self.over = 0, threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        x = np.linspace(0, 1, 200)
        expected = chain_result(x).tobytes()
        try:
            while not self.over.is_set():
                (output,) = self.model.infer(x, timeout_s=30)
                assert output.tobytes() == expected
                self.done += 1
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Bystander:
        self.thread.start()
        until(lambda: self.done > 0 or self.error is not None)
        return self

    def __exit__(self, *_: object) -> None:
        before = self.done
        until(lambda: self.done > before + 3 or self.error is not None)
        self.over.set()
        self.thread.join()
        pid = entry_of(self.client)["worker_pid"]
        assert self.error is None and pid
        self.client.close()


@pytest.mark.parametrize("kind", ["rt", "be"])
def test_a_model_that_raises_fails_its_task_alone(runtime: RunningRuntime, kind: str) -> None:
    with RuntimeClient(runtime.socket, kind) as client:  # type: ignore[arg-type]
        model = load(client, "raising")
        pid = entry_of(client)["worker_pid"]
        with pytest.raises(TaskFailed, match="ValueError: an input above 0"):
            model.infer(ONE)
        assert model.infer(ZERO)[0][0] == 0
        assert entry_of(client)["worker_pid"] == pid


@pytest.mark.parametrize("kind", ["rt", pytest.param("be", marks=pytest.mark.full)])
def test_a_worker_that_dies_is_replaced_and_its_task_has_failed(runtime: RunningRuntime, kind: str) -> None:
    with Bystander(runtime.socket), RuntimeClient(runtime.socket, kind) as client:  # type: ignore[arg-type]
        model = load(client, "dying")
        for _ in range(2):
            with pytest.raises(TaskFailed, match="ended with 7"):
                model.infer(ONE)
        assert model.infer(ZERO, timeout_s=30)[0][0] == 0


@pytest.mark.parametrize("kind", [pytest.param("rt", marks=pytest.mark.full), "be"])
def test_a_worker_killed_in_mid_task_disturbs_nobody_else(runtime: RunningRuntime, kind: str) -> None:
    with Bystander(runtime.socket), RuntimeClient(runtime.socket, kind) as client:  # type: ignore[arg-type]
        model = load(client, "busy", seconds=0.8)
        task = model.submit(ONE)
        pid = entry_of(client)["worker_pid"]
        time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TaskFailed, match="killed by SIGKILL"):
            task.result(30)
        assert model.infer(ZERO, timeout_s=30)[0][0] == 0
        assert not Path(f"/proc/{pid}").exists()


def test_a_model_that_hangs_is_ended_at_its_limit(runtime: RunningRuntime) -> None:
    with Bystander(runtime.socket), RuntimeClient(runtime.socket, "be") as client:
        model = load(client, "busy", seconds=60)
        with pytest.raises(TaskFailed, match="more than 1 s"):
            model.infer(ONE, timeout_s=30)
        assert model.infer(ZERO, timeout_s=30)[0][0] == 0


def test_a_real_time_model_that_hangs_is_ended_too(start_runtime: Start) -> None:
    """In SCHED_FIFO, on a device of one core: the runtime and everything else wait behind it, and still it ends."""
    runtime = start_runtime("--task-timeout", "0.5", "--cores", str(min(os.sched_getaffinity(0))))
    with RuntimeClient(runtime.socket, "rt") as client:
        model = load(client, "busy", seconds=60)
        with pytest.raises(TaskFailed, match=r"more than 0\.5 s"):
            model.infer(ONE, timeout_s=30)


def test_a_model_that_leaks_is_ended_at_its_limit(runtime: RunningRuntime) -> None:
    with Bystander(runtime.socket), RuntimeClient(runtime.socket, "be") as client:
        model = load(client, "leaking")
        with pytest.raises(TaskFailed, match="--worker-memory"):
            for _ in range(10_000):
                model.infer(ZERO, timeout_s=30)


def test_a_queue_whose_workers_die_again_and_again_takes_no_more(runtime: RunningRuntime) -> None:
    with RuntimeClient(runtime.socket, "be") as client:
        model = load(client, "dying")
        for _ in range(3):
            with pytest.raises(TaskFailed):
                model.infer(ONE, timeout_s=30)
        with pytest.raises(TaskFailed, match="3 times in a row"):
            model.infer(ZERO, timeout_s=30)
        with pytest.raises(UsageError, match="3 times in a row"):
            load(client, "double")


def test_outputs_of_another_shape_are_an_error(runtime: RunningRuntime) -> None:
    with RuntimeClient(runtime.socket, "be") as client:
        model = load(client, "growing")
        with pytest.raises(TaskFailed, match=r"float32\[3\]"):
            model.infer(ONE)


def test_inputs_that_do_not_fit_name_the_signature(runtime: RunningRuntime) -> None:
    """Longer, of another type, of another rank, a scalar."""
    with RuntimeClient(runtime.socket, "be") as client:
        model = load(client, "double")
        for given in (np.zeros(2), np.zeros(1, np.float32), np.zeros((1, 1)), np.float64(3)):
            with pytest.raises(UsageError, match=r"float64\[1\]\) -> \(float64\[1\]"):
                model.infer(given)
        with pytest.raises(UsageError, match="takes 1 inputs, 2"):
            model.infer(ZERO, ZERO)


NOT_MADE = {
    "no_such_module:f": "No module named",
    f"{MODELS}:nothing": "has no 'nothing'",
    "/nowhere/model.py:f": "there is no file",
    "nonsense": "names no factory",
    f"{MODELS}:broken": "RuntimeError: no such weights",
    f"{MODELS}:SystemExit": "has no",
    "sys:exit": "SystemExit",
    "os:getpid": "cannot be called",
    f"{MODELS}:np.array": "TypeError",
}


def test_models_that_cannot_be_made_say_why(runtime: RunningRuntime) -> None:
    with RuntimeClient(runtime.socket, "be") as client:
        for factory, text in NOT_MADE.items():
            with pytest.raises(UsageError, match=text):
                client.load(factory, [("float64", (1,))])
            model = load(client, "double")
            assert model.infer(ONE)[0][0] == 2, f"the queue is of no use any more after {factory}"
            model.unload()


def test_what_a_load_may_ask_for_is_bounded(runtime: RunningRuntime) -> None:
    with RuntimeClient(runtime.socket, "be") as client:
        for dtype, shape, slots in (
            ("float99", (1,), 2),
            ("float64", (-1,), 2),
            ("float64", (2**40,), 2),
            ("float64", (1,), 65),
        ):
            with pytest.raises(UsageError):
                client.load(f"{MODELS}:double", [(dtype, shape)], slots=slots)
        with pytest.raises(UsageError, match=r"takes .*MiB, and .* are free"):
            client.load(f"{MODELS}:double", [("float64", (2**20,))], slots=8)
        assert load(client, "double").infer(ONE)[0][0] == 2
        with pytest.raises(Conflict):
            load(client, "double")


def test_unload_while_busy_waits_for_the_last_task(runtime: RunningRuntime) -> None:
    with RuntimeClient(runtime.socket, "be") as client:
        model = load(client, "busy", seconds=0.3)
        tasks = [model.submit(ONE), model.submit(ONE)]
        used = client.stats()["memory_bytes"]
        model.unload()
        assert all(task.done() for task in tasks)
        assert client.stats()["memory_bytes"] < used
        with pytest.raises(TaskFailed, match="there is no model"):
            model.infer(ZERO)
        with pytest.raises(NotFound):
            model.unload()
        assert load(client, "busy", seconds=0.0).infer(ZERO)[0][0] == 0


CLIENT = """
import sys, numpy as np
from tidewright.runtime.client import RuntimeClient
client = RuntimeClient(sys.argv[1], sys.argv[2])
model = client.load("tidewright.testing.runtime_models:busy", [("float64", (1,))], arguments={"seconds": 0.5}, slots=8)
for _ in range(8):
    model.submit(np.array([1.0]))
print("submitted", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["rt", pytest.param("be", marks=pytest.mark.full)])
def test_a_client_killed_costs_the_others_nothing(runtime: RunningRuntime, kind: str) -> None:
    with Bystander(runtime.socket) as other:
        before = children_of(runtime.process.pid)
        command = [sys.executable, "-c", CLIENT, str(runtime.socket), kind]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"submitted\n"
            process.kill()
        until(lambda: len(other.client.stats()["clients"]) == 1)
        until(lambda: children_of(runtime.process.pid) == before)


def test_a_client_that_never_reads_stops_only_itself(runtime: RunningRuntime) -> None:
    with Bystander(runtime.socket), RuntimeClient(runtime.socket, "be") as client:
        model = client.load(f"{MODELS}:double", [("float64", (1,))], slots=64)
        for key in range(1, 257):  # as many as the rings hold, no completion is taken
            client._rings.submit(ms_submission(key, model.key))
        until(lambda: entry_of(client)["done"] == 256)
        # One more than it may is a client that does not keep to the protocol, once the ring is as full as it gets.
        assert sum(1 for _ in client._rings.completions()) == 256


def ms_submission(task: int, model: int, slot: int = 0):  # type: ignore[no-untyped-def]
    from tidewright.runtime.transport.rings import Submission

    return Submission(task, model, slot)


def test_rings_with_nonsense_in_them_are_an_error_of_their_client(runtime: RunningRuntime) -> None:
    with Bystander(runtime.socket), RuntimeClient(runtime.socket, "be") as client:
        model = load(client, "busy", seconds=0.2)
        for task, key, slot in ((1, 99_999, 0), (2, model.key, 64), (3, 2**32 - 1, 2**32 - 1)):
            client._rings.submit(ms_submission(task, key, slot))
        until(lambda: entry_of(client)["failed"] == 3)
        os.eventfd_write(client._rings.submitted, 2**40)
        with pytest.raises(Unreachable):
            until(lambda: client.collect(0.1) is not None)


def test_messages_that_are_none_are_refused(runtime: RunningRuntime) -> None:
    with Bystander(runtime.socket):
        for data in (b"x", b"\x00" * 100, os.urandom(5000), b"\x81\xa4type\xa4Done"):
            connection = connect(runtime.socket)
            connection.send(data)
            answer, _ = ms.receive(connection, ms.runtime_messages)
            assert isinstance(answer, ms.RequestRefused), data
            with pytest.raises(ConnectionError):
                ms.receive(connection, ms.runtime_messages)
            connection.close()


def test_descriptors_that_nobody_asked_for_are_closed(runtime: RunningRuntime) -> None:
    def held() -> int:
        return len(os.listdir(f"/proc/{runtime.process.pid}/fd"))

    with RuntimeClient(runtime.socket, "be") as client:
        before = held()
        for _ in range(20):
            mine = array.array("i", [0, 1, 2])
            message = ms._ENCODER.encode(ms.GetStats())
            client._connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, mine)])
            ms.receive(client._connection, ms.runtime_messages)
        assert held() == before


def test_clients_that_come_and_go_leave_nothing(runtime: RunningRuntime) -> None:
    def held() -> int:
        return len(os.listdir(f"/proc/{runtime.process.pid}/fd"))

    def one() -> None:
        with RuntimeClient(runtime.socket, "be") as client:
            load(client, "double").infer(ONE)

    one()
    until(lambda: not children_of(runtime.process.pid))
    before = held()
    for _ in range(5):
        one()
    connect(runtime.socket).close()
    until(lambda: held() <= before)
    until(lambda: not children_of(runtime.process.pid))


def test_requests_out_of_order_are_refused(runtime: RunningRuntime) -> None:
    connection = connect(runtime.socket)
    with pytest.raises(UsageError, match="before Hello"):
        ask(connection, ms.SetWeight(3))
    connection.close()
    for hello in (ms.Hello("be", weight=0), ms.Hello("be", threads=1000)):
        connection = connect(runtime.socket)
        with pytest.raises(UsageError):
            ask(connection, hello)
        connection.close()
    with RuntimeClient(runtime.socket, "be") as client:
        for message in (ms.Hello("be"), ms.UnloadModel(12345), ms.SetWeight(0), ms.SetWeight(10**9)):
            with pytest.raises(UsageError):
                client.request(message)
        client.set_weight(7)
        assert entry_of(client)["weight"] == 7


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")
def test_another_user_is_not_let_in(start_runtime: Start) -> None:
    with tempfile.TemporaryDirectory(prefix="tidewright-") as folder:
        runtime = start_runtime(socket=Path(folder) / "s")
        for part in (runtime.socket, Path(folder)):
            os.chmod(part, 0o777)  # as if it had been opened by mistake
        program = (
            "import os, socket, sys\nos.setgid(65534); os.setuid(65534)\n"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])\n"
            "print('connected', flush=True)\n"
            "try:\n    s.send(b'x'); got = s.recv(100)\nexcept OSError:\n    got = b''\n"
            "sys.exit(1 if got else 0)"
        )
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-c", program, str(runtime.socket)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and done.stdout == "connected\n", done.stderr
        RuntimeClient(runtime.socket).close()


def test_the_runtime_is_one_thread() -> None:
    """A thread of a numerical library would get the signals of children, and they would be lost."""
    program = (
        "import sys, os, tidewright.runtime.daemon.main\n"
        "assert 'numpy' not in sys.modules and 'torch' not in sys.modules\n"
        "assert len(os.listdir('/proc/self/task')) == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_option_of_the_command_line_is_read() -> None:
    from tidewright.runtime.daemon.main import parser, settings_of

    given = ["--device", "cpu", "--stop", "gate", "--no-fifo", "--sequential", "--streams", "3", "--rt-threads", "2"]
    given += [
        "--be-threads",
        "2",
        "--memory",
        "8MiB",
        "--worker-memory",
        "9MiB",
        "--task-timeout",
        "3",
        "--quantum-ms",
        "7",
    ]
    given += ["--stop-bound-ms", "8", "--clients", "9", "--cores", str(min(os.sched_getaffinity(0))), "--requeue"]
    given += ["--padding-bound", "0.1", "--load-timeout", "9"]
    plain = settings_of(parser().parse_args(["--socket", "/x", "--device", "cpu"]))
    found = settings_of(parser().parse_args(["--socket", "/x", *given]))
    padded = ["--device", "cuda", "--padding", "always", "--padding-sms", "24"]  # not with --sequential
    gpu = settings_of(parser().parse_args(["--socket", "/x", *padded]))
    same = [name for name in plain.__slots__ if getattr(plain, name) == getattr(found, name) == getattr(gpu, name)]
    assert set(same) <= {"socket", "device_worker"}, same
    same = [
        name for name in plain.scheduler.__slots__ if getattr(plain.scheduler, name) == getattr(found.scheduler, name)
    ]
    assert same == ["interrupts"], same
    unstopped = settings_of(parser().parse_args(["--socket", "/x", "--device", "cpu", "--stop", "none"]))
    assert plain.scheduler.interrupts and not unstopped.scheduler.interrupts


def test_a_runtime_that_ends_in_the_midst_of_stops_ends_well(start_runtime: Start) -> None:
    """Its timer still ran when the interpreter ended, and killed it by SIGALRM."""
    runtime = start_runtime("--stop-bound-ms", "1")
    with RuntimeClient(runtime.socket, "be") as best, RuntimeClient(runtime.socket, "rt") as fast:
        chain = best.load("tidewright.testing.runtime_models:chain", [("float64", (20_000,))])
        double = fast.load("tidewright.testing.runtime_models:double", [("float32", (4,))])
        chain.submit(np.ones(20_000))
        for _ in range(5):
            double.infer(np.ones(4, np.float32))
        runtime.process.terminate()
        assert runtime.process.wait(20) == 0


def test_a_jobs_runtime_takes_the_socket_of_its_last_attempt_and_keeps_it(start_runtime: Start) -> None:
    """That one is on a node that was taken for dead, and ends when it is found again."""
    last = start_runtime("--requeue")
    now = start_runtime("--requeue", socket=last.socket)
    last.process.kill()
    last.process.wait()
    first = start_runtime("--requeue", socket=now.socket)
    now.process.send_signal(signal.SIGINT)
    assert now.process.wait(20) == 0
    with RuntimeClient(first.socket, "rt") as client:
        assert client.stats()["pid"] == first.process.pid
    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(20) == 0 and not first.socket.exists()


def test_a_second_runtime_on_a_socket_is_refused_and_a_dead_one_is_replaced(
    start_runtime: Start, tmp_path: Path
) -> None:
    runtime = start_runtime()
    command = [sys.executable, "-m", "tidewright.runtime.daemon", "--socket", str(runtime.socket)]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 2 and "listens on" in second.stderr
    runtime.process.kill()
    runtime.process.wait()
    with pytest.raises(Unreachable, match="tide runtime up"):
        RuntimeClient(runtime.socket)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as third:
        assert third.stdout is not None and third.stdout.readline().startswith(b"runtime: ready")
        RuntimeClient(runtime.socket).close()
        third.terminate()


def test_workers_do_not_outlive_a_runtime_that_is_killed(start_runtime: Start) -> None:
    """Not even those that are stopped: those see no connection end."""
    runtime = start_runtime()
    with RuntimeClient(runtime.socket, "be") as slow, RuntimeClient(runtime.socket, "rt") as quick:
        long = load(slow, "busy", seconds=50)
        short = load(quick, "busy", seconds=50)
        task = long.submit(ONE)
        until(lambda: entry_of(slow)["stream"] == "running")
        short.submit(ONE)
        until(lambda: entry_of(slow)["stream"] == "stopped")
        workers = children_of(runtime.process.pid)
        assert len(workers) == 2
        runtime.process.kill()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        with pytest.raises(Unreachable):
            task.result(30)


@pytest.mark.parametrize(
    "option", [["--stop", "kill"], ["--memory", "lots"], ["--streams", "0"], ["--cores", "9999"], ["--cores", "x"]]
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, option: list[str]) -> None:
    command = [sys.executable, "-m", "tidewright.runtime.daemon", "--socket", str(tmp_path / "s"), *option]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


def test_a_runtime_that_was_given_gpus_says_what_is_missing_where_there_are_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidewright.runtime.daemon", "--socket", str(tmp_path / "s")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "GPU-1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env=environment)
    assert done.returncode == 2 and "pip install torch" in done.stderr, done.stderr
