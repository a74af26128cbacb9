"""``tide kube`` as a user types it, against a fake API server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.command import here
from tests.kube.extending import until
from tests.kube.objects import node, placed
from tidewright.app.kube.cluster import read_token
from tidewright.base.errors import UsageError
from tidewright.kube.client.credentials import find_cluster, from_kubeconfig
from tidewright.kube.extender.metrics import ExtenderMetrics
from tidewright.testing.kube_api import FakeApi

pytestmark = pytest.mark.processes
TIDE = str(Path(sys.executable).with_name("tide"))


def kubeconfig(path: Path, server: str, **user: object) -> Path:
    path.write_text(json.dumps({
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }))  # fmt: skip
    return path


async def tide(*words: str) -> tuple[int, str, str]:
    """A command that asks and ends, beside what serves it here."""
    done = await asyncio.to_thread(here, *words)
    return done.returncode, done.stdout, done.stderr


def test_inspect_and_extender_from_the_command_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeApi().served() as api:
            await api.create("nodes", node("n1"))
            await api.create("pods", placed("a", "n1", 0, 6))
            config = str(kubeconfig(tmp_path / "config", api.url))
            code, out, _ = await tide("kube", "inspect", "--kubeconfig", config)
            assert (code, out.splitlines()[1].split()) == (0, ["n1", "unknown", "6/15", "0/15", "6/30"])
            code, out, _ = await tide("kube", "inspect", "--kubeconfig", config, "-o", "json", "n1")
            assert json.loads(out)["nodes"][0]["pods"][0]["name"] == "a"
            code, _, err = await tide("kube", "inspect", "--kubeconfig", config, "other")
            assert (code, "nodes that do: n1" in err) == (2, True)
            process = await asyncio.create_subprocess_exec(
                TIDE, "kube", "extender", "--kubeconfig", config, "--port", "0", stderr=asyncio.subprocess.PIPE
            )
            assert process.stderr is not None
            assert b"leads" in await process.stderr.readline()
            assert b"1 nodes share GPUs, 1 pods have GPUs assigned" in await process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            lease = next(item for (kind, *_), item in api.store.objects.items() if kind == "leases")
            await until(lambda: lease is not None)
            assert api.store.objects["leases", "kube-system", "tidewright-extender"]["spec"]["holderIdentity"] == ""

    asyncio.run(main())


def test_a_cluster_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    config = str(kubeconfig(tmp_path / "config", "http://127.0.0.1:1"))
    code, _, err = asyncio.run(tide("kube", "inspect", "--kubeconfig", config))
    assert code != 0
    assert "no answer" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("text", "words"), [("", "no kubeconfig"), ("[", "cannot be read"), ("{}", "no context")])
def test_a_kubeconfig_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        from_kubeconfig(path)


def test_without_any_cluster_it_says_where_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="no cluster is known") as caught:
        find_cluster()
    assert "--kubeconfig" in caught.value.remedy


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    os.chmod(path, 0o644)
    with pytest.raises(UsageError, match="others may read"):
        read_token(path)
    os.chmod(path, 0o600)
    assert read_token(path) == "secret"


def test_every_metric_of_the_extender_is_on_its_page(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs" / "metrics.md").read_text()
    rows = [row.split("|")[1:3] for row in page.splitlines() if row.startswith("| `tidewright_kube_")]
    told = {name.strip().strip("`"): kind.strip() for name, kind in rows}
    measures = ExtenderMetrics()
    measures.answered("filter", 200, 0.1)
    made = {}
    for metric in measures.registry._collector_to_names:
        [family] = metric.collect()
        labels = ",".join(metric._labelnames)
        made[family.name + "_total" * (family.type == "counter") + f"{{{labels}}}" * bool(labels)] = family.type
    assert made == told
