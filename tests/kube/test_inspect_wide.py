"""The columns that -o wide adds, and that the default table stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kube.objects import node, placed, pod
from tidewright.kube.doctor.inspect_tables import Inspection, as_json, details, summary
from tidewright.kube.doctor.inspect_wide import age, asked, plugin, stranded, wide, wide_details
from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, publish
from tidewright.kube.objects.heartbeat import PluginHeartbeat, written
from tidewright.kube.objects.usage import used_on
from tidewright.kube.objects.usage import written as written_use

NOW_S = 1_700_000_000.0
AT = "2023-11-14T22:13:08Z"


def noted(name: str, **notes: str) -> dict[str, object]:
    return node(name, annotations={getattr(names, key): value for key, value in notes.items()})


def test_four_columns_stand_behind_the_usual_ones() -> None:
    heartbeat = written(PluginHeartbeat(True, AT))
    found = Inspection.of(
        [noted("n1", LEVEL="L0 watchdog", PLUGIN=heartbeat), node("n2", 8, 1)],
        [placed("a", "n1", 0, 10), placed("b", "n1", 1, 2)],
        {"n1": frozenset({1})},
    )
    usual = summary(found).splitlines()
    lines = wide(found, NOW_S).splitlines()
    assert [line.startswith(known.rstrip()) for line, known in zip(lines[:3], usual[:3], strict=True)] == [True] * 3
    assert [line[len(usual[0]) :] for line in lines[:3]] == [
        "  ISOLATION    UNHEALTHY  STRANDED  PLUGIN",
        "  L0 watchdog  1          2,0       12s ago",
        "  -            -          4         -",
    ]


def test_the_default_table_does_not_change() -> None:
    pods = [placed("a", "n1", 0, 10)]
    plain = summary(Inspection.of([node("n1")], pods))
    rich = Inspection.of([noted("n1", LEVEL="L3 MPS", PLUGIN="x")], pods, {"n1": frozenset({0})})
    assert summary(rich) == plain
    assert as_json(rich)["nodes"][0]["gpus"][0]["healthy"] is False


def test_stranded_is_what_the_pods_of_the_cluster_cannot_use() -> None:
    sizes = asked(
        Inspection.of([node("n1")], [placed("a", "n1", 0, 10), placed("b", "n1", 1, 2), pod("c", 5, node="n1")])
    )
    assert sizes == {10: 1, 2: 1, 5: 1}
    assert [stranded(free, sizes) for free in (0, 3, 5, 15)] == [0, 2, 2, 0]


def test_what_pods_use_stands_beside_what_they_were_given() -> None:
    pods = [placed("a", "n1", 0, 10), placed("b", "n1", 1, 2), placed("c", "n2", 0, 1), pod("d", 5, node="n2")]
    pods[0]["metadata"]["annotations"][names.LEVEL] = "L3 MPS"
    uid = pods[0]["metadata"]["uid"]
    found = Inspection.of([noted("n1", USE=written_use({(uid, 0): 9000, (uid, 1): 3, ("x", 0): 7})), node("n2")], pods)
    rows = {line.split()[0]: line.split() for line in wide_details(found).splitlines() if line.split()}
    assert rows["a"] == ["a", "default", "10", "0", "9000,3", "L3", "MPS"]
    assert rows["b"][-2:] == ["0", "-"], "seen to use nothing"
    assert rows["c"][-2:] == ["-", "-"] and rows["d"][-2:] == ["-", "-"], "nobody looks there"
    [first, second, *_] = as_json(found)["nodes"][0]["pods"]
    assert first["usedMiB"] == {"0": 9000, "1": 3} and first["isolation"] == "L3 MPS" and second["usedMiB"] == {}
    assert as_json(found)["nodes"][1]["pods"][0]["usedMiB"] is None
    assert details(found) == details(Inspection.of([node("n1"), node("n2")], pods)), "gpushare's table stays as it is"


@given(st.dictionaries(st.tuples(st.text(max_size=5), st.integers(0, 127)), st.integers(0, 10**6), max_size=20))
def test_use_is_read_as_it_was_written(used: dict[tuple[str, int], int]) -> None:
    back = used_on(noted("n", USE=written_use(used)))
    assert back is not None and {(uid, gpu): mib for uid, gpus in back.items() for gpu, mib in gpus.items()} == used


def test_use_that_cannot_be_read_or_is_endless() -> None:
    for wrong in ("", "[", "[1]", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": -1}}', "[" * 5000):
        assert used_on(noted("n", USE=wrong)) is None
    many = written_use({(f"{at:036}", 0): at for at in range(5000)})
    kept = used_on(noted("n", USE=many))
    assert kept is not None and len(kept) == 1000 and f"{4999:036}" in kept and len(many) < 200_000


def test_what_others_use_is_not_free() -> None:
    inventory = publish((GpuInfo(0, 15, foreign=12),))
    found = Inspection.of([noted("n1", TABLE=inventory)], [placed("a", "n1", 0, 2)])
    assert wide(found, NOW_S).splitlines()[1].split()[-2] == "1"


@pytest.mark.parametrize(
    ("heartbeat", "words"),
    [
        ("", "-"),
        ("[", "UNREADABLE"),
        (written(PluginHeartbeat(False, AT)), "UNREGISTERED"),
        (written(PluginHeartbeat(True, AT)), "12s ago"),
        (written(PluginHeartbeat(True, "2023-11-14T22:00:00Z")), "SILENT since 2023-11-14T22:00:00Z"),
        (written(PluginHeartbeat(True, "yesterday")), "SILENT since yesterday"),
        (written(PluginHeartbeat(True, "2023-11-14T22:13:58Z")), "0s ago"),
    ],
)
def test_the_plugin_is_heard_or_it_is_said(heartbeat: str, words: str) -> None:
    assert plugin(heartbeat, NOW_S) == words


def test_a_time_that_is_none_is_endlessly_old() -> None:
    assert age("", NOW_S) == float("inf")
    assert age(AT, NOW_S) == 12


def test_an_empty_cluster_has_no_rows() -> None:
    assert wide(Inspection.of([], []), NOW_S).startswith("NAME  IPADDRESS  GPU Memory(GiB)  ISOLATION")
