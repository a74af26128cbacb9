"""The gateway with real replicas over real sockets, as Triton's client and curl would use it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .gateway_process import GATEWAY_CODE, Serving

WARMED_UP = 4 * (1 + 2 + 4 + 8)
"""Items of the zeros that a model of up to 8 is run on before it is ready."""
pytestmark = pytest.mark.processes


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path)
    yield made
    made.close()


def test_a_real_client_of_triton(serving: Serving) -> None:
    http = pytest.importorskip("tritonclient.http", reason="the client of Triton is not installed")
    np = pytest.importorskip("numpy")
    serving.replica("total")
    client = http.InferenceServerClient((serving.state / "serve.address").read_text(), concurrency=4)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("total")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    assert client.get_model_metadata("total")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for binary in (True, False):
        given = http.InferInput("x", [2, 3], "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        wanted = http.InferRequestedOutput("y", binary_data=binary)
        assert client.infer("total", [given], outputs=[wanted]).as_numpy("y").tolist() == [[3.0], [12.0]]
    later = [client.async_infer("total", [given], request_id=str(at)) for at in range(20)]
    assert [one.get_result().get_response()["id"] for one in later] == [str(at) for at in range(20)]
    with pytest.raises(Exception, match="the model takes x FP32"):
        client.infer("total", [http.InferInput("z", [1, 3], "FP32").set_data_from_numpy(x[:1])])
    client.close()


def test_what_is_wrong_has_its_status(serving: Serving) -> None:
    serving.replica("total")
    status, said, _ = serving.infer("total", 2)
    assert status == 200 and (said["model_name"], said["model_version"]) == ("total", "1")
    assert said["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [6.0]}]
    assert serving.infer("other", 2)[0] == 404
    assert serving.ask("POST", "/v2/models/total/versions/7/infer", {"inputs": []})[0] == 404
    assert serving.ask("GET", "/v2/models/total/infer")[0] == 405
    status, said, _ = serving.infer("total", 2, items=9)
    assert status == 400 and "a batch of 9 items; the model takes 1 to 8" in said["error"]
    assert serving.ask("POST", "/v2/models/total/infer", "{")[0] == 400
    assert serving.infer("total", 1, tide_timeout_ms="soon")[0] == 400
    assert serving.infer("total", 1, tide_class="fast")[0] == 400
    assert serving.infer("total", 1, inference_header_content_length="-1")[0] == 400
    assert serving.ask("POST", "/v2/models/total/infer", "x" * 100_001)[0] == 413
    status, said, _ = serving.infer("total", -1)
    assert (status, said["error"]) == (500, "the model failed: ValueError: negative")
    serving.replica("slow")
    found = [serving.infer("slow", 1, tide_timeout_ms="1") for _ in range(3)]
    assert {status for status, _, _ in found} == {503} and all(int(one["retry-after"]) >= 1 for _, _, one in found)
    assert {said["code"] for _, said, _ in found} == {"deadline"}
    assert serving.infer("total", 2, tide_class="be")[0] in (200, 503)
    text = serving.ask("GET", "/metrics")[1].decode()
    assert 'tidewright_serve_requests_total{result="model",service="total"} 1.0' in text


def test_requests_are_batched_and_one_that_fails_spoils_no_other(serving: Serving) -> None:
    serving.replica("total")
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda at: serving.infer("total", -1 if at % 7 == 0 else at), range(64)))
    for at, (status, said, _) in enumerate(found):
        assert status == (500 if at % 7 == 0 else 200)
        if status == 200:
            assert said["outputs"][0]["data"] == [3.0 * at]


def test_no_batch_has_more_items_than_the_model_takes(serving: Serving, tmp_path: Path) -> None:
    serving.replica("sizes", env={"SIZES": str(tmp_path / "sizes")})
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda at: serving.infer("sizes", at, items=1 + at % 8), range(60)))
    assert [status for status, _, _ in found] == [200] * 60
    assert all(said["outputs"][0]["shape"] == [1 + at % 8, 3] for at, (_, said, _) in enumerate(found))
    sizes = [int(line) for line in (tmp_path / "sizes").read_text().split()]
    served = sum(1 + at % 8 for at in range(60))
    assert max(sizes) <= 8 and sum(sizes) == served + WARMED_UP
    batches = float(
        serving.ask("GET", "/metrics")[1].decode().partition('batch_size_sum{service="sizes"} ')[2].split()[0]
    )
    assert batches == served  # each batch of the gateway is one of the model
    status, said, _ = serving.infer("sizes", 1, items=9)
    assert status == 400 and "1 to 8; the model takes x FP32 [batch, 3]" in said["error"]


def test_a_replica_that_dies_is_replaced_by_another_once(serving: Serving, tmp_path: Path) -> None:
    env = {"DIE_ONCE": str(tmp_path / "died")}
    serving.replica("total", 1, env=env)
    serving.replica("total", 2, env=env)
    assert serving.infer("total", 99)[0] == 200
    assert serving.ready("total") == 1
    serving.replica("total", 3)
    status, said, _ = serving.infer("total", 98)  # kills each that runs it: it is run twice, and not for ever
    assert (status, said["code"]) == (503, "replica_lost")
    assert serving.ready("total") == 0
    assert serving.infer("total", 1)[0] == 503
    serving.replica("total", 4, idempotent=False)
    serving.replica("total", 5, idempotent=False)
    assert serving.infer("total", 98)[1]["code"] == "replica_lost" and serving.ready("total") == 1
    assert serving.infer("total", 1)[0] == 200


def test_a_replica_that_is_stopped_answers_what_it_has_and_no_request_fails(serving: Serving) -> None:
    first = serving.replica("total", 1)
    found: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            found.append(serving.infer("total", 1)[0])

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for one in askers:
        one.start()
    second = serving.replica("total", 2)
    first.send_signal(signal.SIGTERM)
    assert first.wait(20) == 0
    time.sleep(0.2)
    serving.replica("total", 3)
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    stop.set()
    for one in askers:
        one.join()
    assert len(found) > 20 and set(found) == {200}


def test_replicas_come_back_to_a_gateway_that_was_killed(serving: Serving) -> None:
    replica = serving.replica("total")
    serving.gateway.kill()
    serving.gateway.wait()
    (serving.state / "serve.address").unlink()
    serving.gateway = serving._start([sys.executable, "-c", GATEWAY_CODE, str(serving.state), ""], {})
    serving.until(lambda: (serving.state / "serve.address").exists() and serving.ready("total") == 1)
    assert serving.infer("total", 1)[0] == 200 and replica.poll() is None
    assert (serving.state / "serve.sock").stat().st_mode & 0o077 == 0


def test_a_second_gateway_and_strangers(serving: Serving) -> None:
    second = subprocess.run(
        [sys.executable, "-c", GATEWAY_CODE, str(serving.state), ""], capture_output=True, text=True, timeout=30
    )
    assert "runs already" in second.stderr

    async def stranger(data: bytes) -> bytes:
        """Refused at its first bytes: a replica's first message is a small one."""
        reader, writer = await asyncio.open_unix_connection(serving.state / "serve.sock")
        writer.write(data)
        await writer.drain()
        found = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return found

    for data in (b"\xff\xff\xff\xff", b"\x03\x00\x00\x00abc", b"GET / HTTP/1.1\r\n\r\n"):
        assert asyncio.run(stranger(data)) == b""
    assert serving.log().count("a replica is turned away") == 3
    serving.replica("total")
    assert serving.infer("total", 1)[0] == 200


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    made = Serving.__new__(Serving)
    made.state, made.processes = tmp_path, []
    made.gateway = made._start([sys.executable, "-c", GATEWAY_CODE, str(tmp_path), "secret-secret-secret"], {})
    try:
        made.until(lambda: (tmp_path / "serve.address").exists())
        assert made.ask("GET", "/v2/health/live")[0] == 401
        assert made.ask("GET", "/v2/health/live", authorization="Bearer secret-secret-secre")[0] == 401
        assert made.ask("GET", "/v2/health/live", authorization="Bearer secret-secret-secret")[0] == 200
    finally:
        made.close()


def test_a_replica_that_was_slow_for_a_while_is_used_again(serving: Serving) -> None:
    serving.replica("slow_at_first", objective_us=100_000)
    found = [serving.infer("slow_at_first", 1)[0] for _ in range(20)]
    assert found[0] == 200 and found[-5:] == [200] * 5
