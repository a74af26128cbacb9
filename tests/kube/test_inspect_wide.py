"""The columns that -o wide adds, and that the default table stays as it is."""

from __future__ import annotations

import pytest

from tests.kube.objects import node, placed, pod
from tidewright.kube import names
from tidewright.kube.beat import Beat, written
from tidewright.kube.cards import Card, publish
from tidewright.kube.inspect import Inspection, as_json, summary
from tidewright.kube.wide import age, asked, plugin, stranded, wide

NOW_S = 1_700_000_000.0
AT = "2023-11-14T22:13:08Z"


def noted(name: str, **notes: str) -> dict[str, object]:
    return node(name, annotations={getattr(names, key): value for key, value in notes.items()})


def test_four_columns_stand_behind_the_usual_ones() -> None:
    beat = written(Beat(True, AT))
    found = Inspection.of(
        [noted("n1", LEVEL="L0 watchdog", PLUGIN=beat), node("n2", 8, 1)],
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


def test_what_others_use_is_not_free() -> None:
    table = publish((Card(0, 15, foreign=12),))
    found = Inspection.of([noted("n1", TABLE=table)], [placed("a", "n1", 0, 2)])
    assert wide(found, NOW_S).splitlines()[1].split()[-2] == "1"


@pytest.mark.parametrize(
    ("beat", "words"),
    [
        ("", "-"),
        ("[", "UNREADABLE"),
        (written(Beat(False, AT)), "UNREGISTERED"),
        (written(Beat(True, AT)), "12s ago"),
        (written(Beat(True, "2023-11-14T22:00:00Z")), "SILENT since 2023-11-14T22:00:00Z"),
        (written(Beat(True, "yesterday")), "SILENT since yesterday"),
        (written(Beat(True, "2023-11-14T22:13:58Z")), "0s ago"),
    ],
)
def test_the_plugin_is_heard_or_it_is_said(beat: str, words: str) -> None:
    assert plugin(beat, NOW_S) == words


def test_a_time_that_is_none_is_endlessly_old() -> None:
    assert age("", NOW_S) == float("inf")
    assert age(AT, NOW_S) == 12


def test_an_empty_cluster_has_no_rows() -> None:
    assert wide(Inspection.of([], []), NOW_S).startswith("NAME  IPADDRESS  GPU Memory(GiB)  ISOLATION")
