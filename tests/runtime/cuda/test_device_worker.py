"""The worker that all clients of a device share, with real processes and a device of threads: the conformance kit, and what
becomes of clients when one of them, or the worker, is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tidewright.base.errors import Conflict, UsageError
from tidewright.runtime.client import RemoteModel, RuntimeClient, TaskFailed
from tidewright.testing import runtime_kit

from ..conftest import RunningRuntime, Start, entry_of, until

pytestmark = pytest.mark.processes
MODELS, SIZE = runtime_kit.MODELS, runtime_kit.SIZE
DAEMON = "tests.runtime.cuda.host_daemon"
LEFT = "a client that is gone left on the device"


@pytest.fixture(scope="module")
def runtime(start_runtime: Start) -> RunningRuntime:
    return start_runtime(module=DAEMON)


def test_outputs_are_exact_under_preemption(runtime: RunningRuntime) -> None:
    assert runtime_kit.exact_under_preemption(runtime.socket, 100) >= 100


def test_no_task_is_lost_or_doubled(runtime: RunningRuntime, tmp_path: Path) -> None:
    runtime_kit.none_lost_or_doubled(runtime.socket, tmp_path, 100)


def test_real_time_goes_first(runtime: RunningRuntime, tmp_path: Path) -> None:
    runtime_kit.real_time_goes_first(runtime.socket, tmp_path, 2)


def test_what_is_cancelled_in_time_never_runs(runtime: RunningRuntime) -> None:
    runtime_kit.cancelled_before_it_began(runtime.socket)


def test_clients_share_one_worker_and_stops_are_measured_where_they_happen(runtime: RunningRuntime) -> None:
    with RuntimeClient(runtime.socket, "be") as one, RuntimeClient(runtime.socket, "rt") as other:
        assert one.device == other.device == "cuda"
        assert (one.level, other.level) == ("G4 CTA gate", "stream of high priority")
        assert entry_of(one)["worker_pid"] == entry_of(other)["worker_pid"]
        found = one.stats()
        assert (found["device"], found["gpu"], found["sms"]) == ("cuda", "host", 100)
    runtime_kit.exact_under_preemption(runtime.socket, 20)
    with RuntimeClient(runtime.socket, "be") as one:
        assert one.stats()["stop_acknowledged_us"]["n"] > 5


def test_a_client_that_is_killed_leaves_its_queue_to_others(runtime: RunningRuntime) -> None:
    """More clients than the device has queues come and go, each with a task that has begun."""
    program = (
        "import os, signal, sys, numpy\nfrom tidewright.runtime.client import RuntimeClient\n"
        "for _ in range(4):\n    if pid := os.fork():\n        assert os.waitpid(pid, 0)[1] == signal.SIGKILL\n"
        "    else:\n        break\nelse:\n    sys.exit()\n"
        f"client = RuntimeClient(sys.argv[1], 'be')\nmodel = client.load('{MODELS}:chain', [('float64', ({SIZE},))],\n"
        f"    arguments={{'operators': 3000}})\nmodel.submit(numpy.zeros({SIZE}))\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(runtime.socket)], check=True, timeout=60)
    with RuntimeClient(runtime.socket, "be") as client:
        until(lambda: len(client.stats()["clients"]) == 1)
        assert client.load(f"{MODELS}:double", [("float32", (8,))]).infer(np.ones(8, np.float32))[0].sum() == 16


@pytest.mark.parametrize("kind", [pytest.param("rt", marks=pytest.mark.full), "be"])
def test_a_task_that_its_client_left_behind_does_not_keep_the_device(start_runtime: Start, kind: str) -> None:
    runtime = start_runtime("--task-timeout", "1", module=DAEMON)
    with RuntimeClient(runtime.socket, kind) as gone:
        hangs = gone.load(f"{MODELS}:busy", [("float64", (1,))], arguments={"seconds": 100.0})
        hangs.submit(np.ones(1))
        until(lambda: entry_of(gone)["outstanding"])
    with RuntimeClient(runtime.socket, kind) as client:
        until(lambda: len(client.stats()["clients"]) == 1)
        before = entry_of(client)["worker_pid"]
        double = client.load(f"{MODELS}:double", [("float32", (8,))])
        until(lambda: entry_of(client)["worker_pid"] != before)
        assert double.infer(np.ones(8, np.float32), timeout_s=60)[0].sum() == 16
    assert LEFT in runtime.log.read_text()


def test_the_last_client_leaves_nothing_on_the_device_either(start_runtime: Start) -> None:
    runtime = start_runtime("--task-timeout", "1", module=DAEMON)
    with RuntimeClient(runtime.socket, "rt") as gone:
        gone.load(f"{MODELS}:busy", [("float64", (1,))], arguments={"seconds": 100.0}).submit(np.ones(1))
        until(lambda: entry_of(gone)["outstanding"])
    until(lambda: LEFT in runtime.log.read_text())


FACTORIES = """
import os, time
def slow():
    open(__file__ + ".begun", "w").close()
    time.sleep(100)
def forks():
    if os.fork() == 0:
        time.sleep(8)
        os._exit(0)
    return lambda x: x
"""


def test_a_model_that_its_client_left_unmade_keeps_no_other_from_being_made(
    start_runtime: Start, tmp_path: Path
) -> None:
    (tmp_path / "made.py").write_text(FACTORIES)
    runtime = start_runtime("--load-timeout", "4", module=DAEMON)
    program = (
        "import sys\nfrom tidewright.runtime.client import RuntimeClient\n"
        "RuntimeClient(sys.argv[1], 'be').load(sys.argv[2], [('float32', (8,))])\n"
    )
    what = [sys.executable, "-c", program, str(runtime.socket), f"{tmp_path / 'made.py'}:slow"]
    double = f"{MODELS}:double", [("float32", (8,))]

    def loading() -> int:
        return sum(bool(one["models"]) for one in client.stats()["clients"])

    # The other client is there before: between the first one's load and its end, whose time runs, there is one request only.
    with (
        RuntimeClient(runtime.socket, "be") as client,
        RuntimeClient(runtime.socket, "be") as other,
        ThreadPoolExecutor(1) as aside,
    ):
        with subprocess.Popen(what) as gone:
            # A worker that has not begun to make it drops it with its client, and goes on.
            until((tmp_path / "made.py.begun").exists)
            # Asked before the first one goes: however slow the machine is, the worker is not replaced until it waits.
            asked = aside.submit(other.load, *double)
            until(lambda: loading() == 2)
            gone.kill()
        with pytest.raises(UsageError, match="because of another client"):
            asked.result()
        assert other.load(*double).infer(np.ones(8, np.float32))[0].sum() == 16
    assert LEFT in runtime.log.read_text()


def test_a_process_that_a_factory_forked_costs_nobody_the_worker(start_runtime: Start, tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(FACTORIES)
    runtime = start_runtime("--task-timeout", "1", module=DAEMON)
    with RuntimeClient(runtime.socket, "be") as client:
        before = entry_of(client)["worker_pid"]
        with RuntimeClient(runtime.socket, "be", folder=tmp_path) as gone:
            gone.load("made.py:forks", [("float32", (8,))])
        time.sleep(1.5)
        assert entry_of(client)["worker_pid"] == before and LEFT not in runtime.log.read_text()


def test_the_time_of_what_is_left_begins_when_the_worker_has_a_device(start_runtime: Start) -> None:
    runtime = start_runtime("--task-timeout", "1", module=DAEMON)
    with RuntimeClient(runtime.socket, "be") as client:
        with RuntimeClient(runtime.socket, "be"):
            first = entry_of(client)["worker_pid"]
            os.kill(first, signal.SIGKILL)
            until(lambda: entry_of(client)["worker_pid"] != first)
            slow = entry_of(client)["worker_pid"]
            os.kill(slow, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(slow, signal.SIGCONT)
        assert client.load(f"{MODELS}:double", [("float32", (8,))]).infer(np.ones(8, np.float32))[0].sum() == 16
        assert entry_of(client)["worker_pid"] == slow and LEFT not in runtime.log.read_text()


def test_more_queues_than_the_device_has_are_refused(start_runtime: Start) -> None:
    runtime = start_runtime(module=DAEMON)
    what = f"{MODELS}:double", [("float32", (8,))]
    idle, *clients = (RuntimeClient(runtime.socket, "be") for _ in range(4))
    models = [client.load(*what) for client in clients]
    with pytest.raises(UsageError, match="queues are open"):
        idle.load(*what)
    assert models[0].infer(np.ones(8, np.float32))[0].sum() == 16, "the others are not disturbed"
    clients.pop(0).close()

    def loads() -> bool:  # once the worker has cleared up
        with contextlib.suppress(UsageError):
            return bool(idle.load(*what).infer(np.ones(8, np.float32))[0].sum() == 16)
        return False

    until(loads)
    lost = entry_of(idle)["worker_pid"]
    os.kill(lost, signal.SIGKILL)
    with RuntimeClient(runtime.socket, "be") as late:
        until(lambda: entry_of(late)["worker_pid"] != lost)
        with pytest.raises(UsageError, match="queues are open"):
            late.load(*what)  # those that had models have their places back first
        for model in models[1:]:
            assert eventually_infers(model) == 16
    for client in (idle, *clients):
        client.close()


def eventually_infers(model: RemoteModel) -> float:
    """What was under way when the worker was lost has failed."""
    while True:
        with contextlib.suppress(TaskFailed):
            return float(model.infer(np.ones(8, np.float32), timeout_s=60)[0].sum())


def test_a_worker_that_is_killed_fails_what_it_had_and_another_makes_the_models_again(start_runtime: Start) -> None:
    runtime = start_runtime(module=DAEMON)
    with RuntimeClient(runtime.socket, "be") as best_effort, RuntimeClient(runtime.socket, "rt") as real_time:
        long = best_effort.load(f"{MODELS}:chain", [("float64", (SIZE,))], arguments={"operators": 5_000})
        quick = real_time.load(f"{MODELS}:double", [("float32", (8,))])
        pending = long.submit(np.zeros(SIZE))
        until(lambda: entry_of(best_effort)["stream"] == "running")
        os.kill(entry_of(best_effort)["worker_pid"], signal.SIGKILL)
        with pytest.raises(TaskFailed, match="SIGKILL"):
            pending.result(30)
        (given,) = quick.infer(np.ones(8, np.float32), timeout_s=30)
        assert given.sum() == 16
        assert runtime.process.poll() is None


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.full)])
def test_a_task_that_hangs_costs_the_worker(start_runtime: Start, times: int) -> None:
    """Others lose what they had there, and are not to blame, however often (``MOST_LOSSES`` is 3)."""
    runtime = start_runtime("--task-timeout", "1", module=DAEMON)
    with RuntimeClient(runtime.socket, "be") as hanging, RuntimeClient(runtime.socket, "be") as other:
        model = hanging.load(f"{MODELS}:busy", [("float64", (1,))], arguments={"seconds": 600})
        long = other.load(f"{MODELS}:busy", [("float64", (1,))], arguments={"seconds": 0.4})
        for _ in range(times):
            pending, beside = model.submit(np.ones(1)), long.submit(np.ones(1))
            with pytest.raises(TaskFailed, match="task-timeout"):
                pending.result(30)
            with contextlib.suppress(TaskFailed):
                beside.result(30)
            model.infer(np.zeros(1), timeout_s=30)
        assert not entry_of(other)["broken"]


def test_without_stops_best_effort_work_goes_on_beside_real_time_work(start_runtime: Start) -> None:
    runtime = start_runtime("--stop", "none", module=DAEMON)
    with RuntimeClient(runtime.socket, "be") as best_effort, RuntimeClient(runtime.socket, "rt") as real_time:
        assert best_effort.level == "G1 stream priority"
        chain = best_effort.load(f"{MODELS}:chain", [("float64", (SIZE,))], arguments={"operators": 1000})
        busy = real_time.load(f"{MODELS}:busy", [("float64", (1,))], arguments={"seconds": 3.0})
        begun = chain.submit(np.zeros(SIZE))
        until(lambda: entry_of(best_effort)["stream"] == "running")
        ahead = busy.submit(np.ones(1))
        begun.result(30)
        assert not ahead.done(), "the best-effort task was stopped"
        ahead.result(30)
        assert real_time.stats()["preemptions"] == 0


def test_where_there_is_no_device_it_does_not_start() -> None:
    command = [sys.executable, "-m", DAEMON, "--socket", "/tmp/none"]
    done = subprocess.run(
        command, env={**os.environ, "HOST_DEVICE_MISSING": "1"}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == UsageError.exit_code
    assert "there is no host device" in done.stderr and "leave the variable out" in done.stderr


def test_a_model_is_loaded_while_real_time_work_goes_on(runtime: RunningRuntime, tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ndef make():\n    time.sleep(1.5)\n    return lambda x: x\n")
    with RuntimeClient(runtime.socket, "be") as loading, RuntimeClient(runtime.socket, "rt") as real_time:
        quick = real_time.load(f"{MODELS}:double", [("float32", (8,))])
        import threading

        thread = threading.Thread(target=lambda: loading.load(f"{slow}:make", [("float32", (1,))]))
        thread.start()
        done = 0
        while thread.is_alive():
            quick.infer(np.ones(8, np.float32), timeout_s=30)
            done += 1
        assert done > 20, "real-time work waited for a model that was being made"


def test_unload_while_busy(runtime: RunningRuntime) -> None:
    with RuntimeClient(runtime.socket, "be") as client:
        model = client.load(f"{MODELS}:chain", [("float64", (SIZE,))], arguments={"operators": 500})
        pending = model.submit(np.zeros(SIZE))
        model.unload()
        pending.result(30)
        with pytest.raises((Conflict, UsageError, TaskFailed)):
            model.infer(np.zeros(SIZE), timeout_s=30)


@pytest.mark.parametrize("outputs", ["[x] * 5000", "[x.astype('complex64')]"], ids=["many", "type"])
def test_outputs_that_no_slot_holds_are_refused_and_cost_nobody_anything(
    runtime: RunningRuntime, tmp_path: Path, outputs: str
) -> None:
    file = tmp_path / "odd.py"
    file.write_text(f"def make():\n    return lambda x: {outputs}\n")
    with RuntimeClient(runtime.socket, "be") as odd, RuntimeClient(runtime.socket, "be") as other:
        worker = entry_of(odd)["worker_pid"]
        for _ in range(2):
            with pytest.raises(UsageError, match=r"outputs|element type"):
                odd.load(f"{file}:make", [("float32", (1,))])
        assert other.load(f"{MODELS}:double", [("float32", (8,))]).infer(np.ones(8, np.float32))[0].sum() == 16
        assert entry_of(odd)["worker_pid"] == worker


def test_two_clients_have_files_of_one_name(runtime: RunningRuntime, tmp_path: Path) -> None:
    given = []
    for factor in (2, 3):
        folder = tmp_path / str(factor)
        folder.mkdir()
        (folder / "netx.py").write_text("import helperx\ndef make():\n    return lambda x: helperx.times(x)\n")
        (folder / "helperx.py").write_text(f"def times(x):\n    return x * {factor}\n")
        with RuntimeClient(runtime.socket, "be", folder=folder) as client:
            given.append(client.load("netx:make", [("float32", (1,))]).infer(np.ones(1, np.float32))[0].item())
    assert given == [2, 3]


def test_a_client_whose_models_crash_the_worker_is_shut_out_and_others_are_not(
    start_runtime: Start, tmp_path: Path
) -> None:
    runtime = start_runtime(module=DAEMON)
    file = tmp_path / "dies.py"
    file.write_text("import os\ndef make():\n    return lambda x: os._exit(3) if x[0] else x\n")
    with RuntimeClient(runtime.socket, "be") as guilty, RuntimeClient(runtime.socket, "be") as other:
        model = guilty.load(f"{file}:make", [("float32", (1,))])
        quiet = other.load(f"{MODELS}:double", [("float32", (8,))])
        for _ in range(3):
            with pytest.raises(TaskFailed, match="ended with 3"):
                model.infer(np.ones(1, np.float32), timeout_s=30)
        assert entry_of(guilty)["broken"] and not entry_of(other)["broken"]
        assert quiet.infer(np.ones(8, np.float32), timeout_s=30)[0].sum() == 16


def test_a_worker_that_hangs_for_a_while_is_waited_for(start_runtime: Start) -> None:
    """Requests that it does not take in at once are sent later, in order."""
    runtime = start_runtime(module=DAEMON)
    with RuntimeClient(runtime.socket, "be") as best_effort, RuntimeClient(runtime.socket, "rt") as real_time:
        chain = best_effort.load(f"{MODELS}:chain", [("float64", (SIZE,))], arguments={"operators": 200}, slots=8)
        quick = real_time.load(f"{MODELS}:double", [("float32", (8,))], slots=64)
        worker = entry_of(best_effort)["worker_pid"]
        tasks = [chain.submit(np.zeros(SIZE)) for _ in range(8)]
        os.kill(worker, signal.SIGSTOP)
        tasks += [quick.submit(np.ones(8, np.float32)) for _ in range(64)]
        for _ in range(200):
            best_effort.set_weight(2)
        os.kill(worker, signal.SIGCONT)
        for task in tasks:
            task.result(30)
        assert entry_of(best_effort)["worker_pid"] == worker


def test_a_device_that_cannot_be_opened_again_ends_the_runtime(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    command = [sys.executable, "-m", DAEMON, "--socket", str(tmp_path / "s")]
    environment = {**os.environ, "HOST_DEVICE_GONE": str(gone)}
    daemon = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert daemon.stdout is not None and daemon.stdout.readline().startswith("runtime: ready")
    with RuntimeClient(tmp_path / "s", "be") as client:
        gone.write_text("")
        os.kill(entry_of(client)["worker_pid"], signal.SIGKILL)
        _, errors = daemon.communicate(timeout=60)
    assert daemon.returncode not in (0, None) and "cannot be opened again: the host device is gone" in errors


FORGER = """
import os, socket, time
from tidewright.runtime.transport import messages as ms

def make(task):
    def forge():
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                connection = socket.socket(fileno=os.dup(number))
                ms.send(connection, ms.TaskEnded(task))
                connection.close()
            except OSError:
                pass
    def run(x):
        if x[0]:
            forge()
            time.sleep(float(x[0]))
        return x
    return run
"""


def test_reports_of_tasks_that_a_worker_does_not_have_cost_it_its_life(start_runtime: Start, tmp_path: Path) -> None:
    """The model's code may write to any descriptor of its process."""
    runtime = start_runtime(module=DAEMON)
    (tmp_path / "forger.py").write_text(FORGER)
    with RuntimeClient(runtime.socket, "be") as client:
        model = client.load(f"{tmp_path}/forger.py:make", [("float32", (1,))], arguments={"task": 4}, slots=8)
        tasks = [model.submit(np.full(1, 0.2, np.float32)) for _ in range(4)]  # the last one waits in the runtime
        ended = []
        for task in tasks:
            with contextlib.suppress(TaskFailed):
                task.result(30)
            assert task.completion is not None
            ended.append(task.completion.error)
        assert any("which it does not have" in error for error in ended)
        assert runtime.process.poll() is None
        assert model.infer(np.zeros(1, np.float32), timeout_s=30)[0][0] == 0


def test_a_model_is_unloaded_while_models_are_made_again(start_runtime: Start, tmp_path: Path) -> None:
    runtime = start_runtime(module=DAEMON)
    slow = tmp_path / "slow.py"
    slow.write_text("import time\ndef make(factor):\n    time.sleep(0.3)\n    return lambda x: x * factor\n")
    with RuntimeClient(runtime.socket, "be") as client:
        models = [
            client.load(f"{slow}:make", [("float32", (1,))], arguments={"factor": n}, name=str(n)) for n in (2, 3)
        ]
        os.kill(entry_of(client)["worker_pid"], signal.SIGKILL)
        until(lambda: entry_of(client)["stream"] == "lost")
        models[1].unload()
        assert models[0].infer(np.ones(1, np.float32), timeout_s=30)[0][0] == 2


def test_a_model_that_is_another_when_it_is_made_again_ends_its_queue(start_runtime: Start, tmp_path: Path) -> None:
    runtime = start_runtime(module=DAEMON)
    file = tmp_path / "changes.py"
    file.write_text("import numpy\ndef make():\n    return lambda x: numpy.ones(16, 'float32')\n")
    with RuntimeClient(runtime.socket, "be") as client, RuntimeClient(runtime.socket, "be") as other:
        model = client.load(f"{file}:make", [("float32", (1,))])
        kept = client.load(f"{MODELS}:double", [("float32", (8,))])
        quiet = other.load(f"{MODELS}:double", [("float32", (8,))])
        file.write_text("import numpy\ndef make():\n    return lambda x: numpy.ones(3, 'float32')\n")
        os.kill(entry_of(client)["worker_pid"], signal.SIGKILL)
        until(lambda: bool(entry_of(client)["broken"]))
        assert "signature" in entry_of(client)["broken"]
        for each in (model, kept):
            with pytest.raises(TaskFailed):
                each.infer(*(np.ones(spec.shape, np.float32) for spec in each.signature.inputs), timeout_s=30)
        client.set_weight(3)
        assert client.stats()["device"] == "cuda", "answers are those of the questions"
        assert quiet.infer(np.ones(8, np.float32), timeout_s=30)[0].sum() == 16


@pytest.mark.parametrize("close", ["sockets", "nothing"])
def test_a_load_that_never_ends_is_ended(start_runtime: Start, tmp_path: Path, close: str) -> None:
    """Because its factory never returns, or has closed what it would report on."""
    runtime = start_runtime("--load-timeout", "2", module=DAEMON)
    file = tmp_path / "stuck.py"
    closing = "os.closerange(3, 60)" if close == "sockets" else "pass"
    file.write_text(f"import os, time\ndef make():\n    {closing}\n    time.sleep(600)\n")
    with RuntimeClient(runtime.socket, "be") as stuck, RuntimeClient(runtime.socket, "be") as other:
        with pytest.raises(UsageError, match=r"load-timeout|closed its connection|ended with|killed"):
            stuck.load(f"{file}:make", [("float32", (1,))])
        until(lambda: other.stats() is not None)
        quiet = other.load(f"{MODELS}:double", [("float32", (8,))])
        assert quiet.infer(np.ones(8, np.float32), timeout_s=30)[0].sum() == 16


@pytest.mark.parametrize("option", [["--task-timeout", "0"], ["--load-timeout", "nan"], ["--worker-memory", "1MiB"]])
def test_settings_that_mean_nothing_on_a_gpu_are_refused(tmp_path: Path, option: list[str]) -> None:
    command = [sys.executable, "-m", DAEMON, "--socket", str(tmp_path / "s"), *option]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == UsageError.exit_code and "Traceback" not in done.stderr
