"""Files of openb's form: packed or not, with every mistake by its line; orders that come with them or are drawn."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
import zstandard

from tidewright.app.packing import pack, seeds_of
from tidewright.base.errors import UsageError
from tidewright.sim.packing.openb import load_fills

NODES = "sn,cpu_milli,memory_mib,gpu,model\nb,8000,9000,2,T4\na,8000,9000,4,V100\nc,8000,9000,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    "p1,1000,10,1,500,\np2,1000,10,2,1000,V100\np3,500,10,0,0,\np4,100,10,1,1000,A100|T4\n"
)


def folder(path: Path, nodes: str = NODES, pods: str = PODS) -> str:
    path.mkdir(exist_ok=True)
    (path / "openb_node_list_gpu_node.csv").write_text(nodes)
    (path / "openb_pod_list_default.csv").write_text(pods)
    return f"openb:{path}"


def test_an_order_of_ones_own_is_drawn_by_seed(tmp_path: Path) -> None:
    one, again, other = load_fills(folder(tmp_path), [3, 3, 4])
    assert one.arrivals.pods.tolist() == again.arrivals.pods.tolist() and not one.arrivals.exported
    assert list(one.nodes.names) == ["a", "b", "c"] and one.nodes.kinds == ("", "T4", "V100")
    asked = sum(one.pods.requests[pod].total for pod in one.arrivals.pods.tolist())
    assert asked <= 1.3 * 6000 < asked + 2000
    assert one.arrivals.pods.tolist() != other.arrivals.pods.tolist()


@pytest.mark.parametrize(
    ("ending", "pack_up"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard.ZstdCompressor().compress)],
)
def test_packed_files_are_the_same(tmp_path: Path, ending: str, pack_up: object) -> None:
    plain = folder(tmp_path / "plain")
    folder(tmp_path / "packed")
    for file in list((tmp_path / "packed").iterdir()):
        file.with_name(file.name + ending).write_bytes(pack_up(file.read_bytes()))  # type: ignore[operator]
        file.unlink()
    first, second = (pack(text, "fgd", "1")[0].seeds for text in (plain, f"openb:{tmp_path / 'packed'}"))
    assert first == second


def test_what_never_fits_is_told_apart_from_what_found_no_room(tmp_path: Path) -> None:
    pods = PODS + "".join(f"k{at},0,0,1,1000,H100\n" for at in range(2)) + "w,0,0,8,1000,\n"
    text = folder(tmp_path, pods=pods)
    (tmp_path / "arrival_order_default_seeds1-1.txt").write_text("nodes_1 0 1 2\n1 k0 w k1 p2 p2 p2 p3\n")
    (result,) = pack(text, "best-fit", "1")
    (one,) = result.seeds
    assert one.refusals == {"kind": 2, "size": 1, "full": 1} and one.failed == 4 and one.pods == 7


@pytest.mark.parametrize(
    ("nodes", "pods", "text"),
    [
        ("sn,cpu_milli,memory_mib,gpu\na,1,1,1\n", PODS, r"gpu_node.csv:1: no column model"),
        (NODES + "a,1,1,1,T4\n", PODS, r":5: a again, as in line 3"),
        (NODES + "d,x,1,1,T4\n", PODS, r":5: cpu_milli: 'x' is no whole number"),
        (NODES + "d,1,1,65,T4\n", PODS, r":5: gpu: 65 is not between 0 and 64"),
        (NODES + "d,1,1,1\n", PODS, r":5: 4 cells, but the header names 5 columns"),
        (NODES + "d,1,1,1,T4,9\n", PODS, r":5: 6 cells, but the header names 5 columns"),
        (NODES.replace("model", "model,gpu", 1), PODS, r"gpu_node.csv:1: two columns are called gpu"),
        (NODES + '"d,1,1,1,T4\ne,1,1,1,T4\n', PODS, r":5: a quote opens here"),
        (NODES, PODS + 'p5,1,1,0,0,"V100\n', r"default.csv:6: a quote opens here"),
        (NODES, PODS + "p5,1,1,0,0\n", r":6: 5 cells, but the header names 6 columns"),
        (NODES.splitlines()[0] + "\n", PODS, r"no nodes"),
        (NODES, PODS + "p5,-1,1,0,0,\n", r":6: cpu_milli: -1 is not between"),
        (NODES, PODS + "p5,1,1,1,0,\n", r":6: num_gpu is 1, but gpu_milli is 0"),
        (NODES, PODS + "p5,1,1,1,1001,\n", r":6: gpu_milli: 1001 is not between 0 and 1000\n"),
        (NODES, PODS + ",1,1,1,100,\n", r":6: no name"),
        (NODES, PODS.splitlines()[0] + "\n", r"no pods"),
    ],
)
def test_mistakes_are_named_by_their_lines(tmp_path: Path, nodes: str, pods: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        load_fills(folder(tmp_path, nodes, pods), [1])


def test_orders_must_belong_to_their_lists(tmp_path: Path) -> None:
    text, order = folder(tmp_path), tmp_path / "arrival_order_default_seeds1-2.txt"
    order.write_text("nodes_1 2 0 1\n1 p3 p1 p1\n")
    fill = load_fills(text, [1])[0]
    assert [fill.pods.names[pod] for pod in fill.arrivals.pods.tolist()] == ["p3", "p1", "p1"]
    assert fill.arrivals.exported and fill.arrivals.nodes.tolist() == [1, 2, 0]
    for wrong, said in (
        ("nodes_1 2 0 1\n1 p9\n", r"txt:2: no pod 'p9'"), ("nodes_1 0 0 1\n1 p1\n", "not the ranks 0 to 2"),
        ("1 p1\n", "has no line for nodes"), ("nodes_1 0 1 2\n1 \n", "no pods"),
    ):  # fmt: skip
        order.write_text(wrong)
        with pytest.raises(UsageError, match=said):
            load_fills(text, [1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("philly", "no filling trace"),
        ("openb:/nowhere", "no folder"),
        ("openb:{0},workload=x", "no file openb_pod_list_x"),
    ],
)
def test_what_is_not_there(tmp_path: Path, text: str, said: str) -> None:
    folder(tmp_path)
    with pytest.raises(UsageError, match=said):
        load_fills(text.format(tmp_path), [1])


def test_seeds_are_numbers_and_ranges() -> None:
    assert seeds_of("42-44, 7, 43") == [42, 43, 44, 7], "an order counts once"
    for wrong in ("", "x", "5-3", "1-99999", "-1"):
        with pytest.raises(UsageError, match="seeds"):
            seeds_of(wrong)
