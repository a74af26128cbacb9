"""The table of kubectl inspect gpushare, to the byte."""

from __future__ import annotations

import pytest

from tests.kube.objects import node, placed, pod
from tidewright.base.errors import UsageError
from tidewright.kube.doctor.inspect_tables import Inspection, aligned, as_json, details, summary

HOST = {"type": "Hostname", "address": "first"}


def addressed(name: str, ip: str, **more: object) -> dict[str, object]:
    found = node(name, **more)
    found["status"]["addresses"] = [HOST, {"type": "InternalIP", "address": ip}]
    return found


def look(*pods: dict[str, object]) -> Inspection:
    return Inspection.of([addressed("n1", "192.168.0.1"), node("n2", 8, 1), node("cpu", 0, 0)], pods)


def test_summary() -> None:
    found = look(placed("a", "n1", 0, 6), placed("gone", "n1", 0, 6) | {"status": {"phase": "Failed"}}, pod("waits", 3))
    assert summary(found) == (
        "NAME  IPADDRESS    GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        "n1    192.168.0.1  6/15                   0/15                   6/30\n"
        "n2    unknown      0/8                    0/0                    0/8\n"
        "--------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "6/38 (15%)  \n"
    )


def test_summary_with_pods_that_have_no_gpu_yet() -> None:
    found = look(pod("b", 5, node="n1")).only("n1")
    assert summary(found).splitlines()[:2] == [
        "NAME  IPADDRESS    GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)",
        "n1    192.168.0.1  0/15                   0/15                   5                   5/30",
    ]


def test_details() -> None:
    found = look(placed("a", "n1", 1, 6), placed("b", "n1", 0, 2)).only("n1")
    assert details(found) == (
        "\n"
        "NAME:       n1\n"
        "IPADDRESS:  first\n"
        "\n"
        "NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  \n"
        "b            default    2                0                \n"
        "a            default    0                6                \n"
        "Allocated :  8 (26%)    \n"
        "Total :      30         \n"
        "----------------------------------------\n"
        "\n\n"
        "Allocated/Total GPU Memory In Cluster:  8/30 (26%)  \n"
    )


def test_columns_are_shared_by_neighbouring_lines_only() -> None:
    assert aligned("a\tb\nccc\td\n\neeeee\tf\n") == "a    b\nccc  d\n\neeeee  f\n"


def test_more_than_a_hundred_units_are_mib() -> None:
    assert "GPU Memory(MiB)" in summary(Inspection.of([node("n", 16000, 1)], []))
    assert summary(Inspection.of([], [])).startswith("NAME  IPADDRESS  GPU Memory(GiB)\n\n")


def test_json_has_what_the_table_leaves_out() -> None:
    found = as_json(look(placed("a", "n1", 0, 6)))
    assert found["nodes"][0]["gpus"][0] == {
        "index": 0, "uuid": "", "model": "", "healthy": True, "total": 15, "allocated": 6, "foreign": 0,
    }  # fmt: skip


def test_a_node_that_shares_nothing_is_named_with_those_that_do() -> None:
    with pytest.raises(UsageError, match="shares no GPUs") as caught:
        look().only("cpu")
    assert "n1, n2" in caught.value.remedy


def test_what_cannot_be_read_is_told() -> None:
    assert (
        "gpu-mem"
        in look(
            placed("a", "n1", 0, 6) | {"spec": pod("a", "-3", node="n1")["spec"], "metadata": pod("a")["metadata"]}
        ).odd[0]
    )


@pytest.mark.parametrize("width", [40, 60, 80])
def test_on_a_narrow_terminal_the_columns_follow_in_several_tables(width: int) -> None:
    name = "gpu-node-of-a-very-long-name-in-europe-west4-a.internal"
    nodes = [addressed(name, "10.0.0.1", count=8, mem=128), addressed("n2", "10.0.0.2", count=8, mem=128)]
    found = Inspection.of(nodes, [])
    for table in (summary, details):
        whole = table(found)
        narrow = table(found, width=width)
        assert max(map(len, whole.splitlines())) > 80 and table(found, width=1_000) == whole
        assert all(
            len(line.rstrip()) <= width or line.startswith(("NAME:", "Allocated/")) for line in narrow.splitlines()
        )
        for column in ("GPU0", "GPU7"):
            assert narrow.count(f"{column}(") == whole.count(f"{column}(")
    heads = [line for line in summary(found, width=80).splitlines() if line.startswith("NAME")]
    assert len(heads) > 1 and summary(found, width=80).count("n2 ") == len(heads)
    assert "gpu-node-of-a-ve….internal" in summary(found, width=80) and name in summary(found)
