"""Clusters: names, shorthand and files give the nodes they say; mistakes are all reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.sim.clusters import NODES_PER_RACK, load_cluster

GROUP = st.tuples(st.integers(1, 40), st.integers(1, 16), st.sampled_from(["v100", "a100", "gpu"]))


@given(st.lists(GROUP, min_size=1, max_size=4))
def test_shorthand_gives_every_group_in_racks(groups: list[tuple[int, int, str]]) -> None:
    nodes = load_cluster(",".join(f"{count}x{devices}:{kind}" for count, devices, kind in groups))
    assert [(node.devices, node.kind) for node in nodes] == [(d, k) for count, d, k in groups for _ in range(count)]
    assert len({node.name for node in nodes}) == len(nodes)
    for at, node in enumerate(nodes):
        assert node.domain == nodes[at // NODES_PER_RACK * NODES_PER_RACK].domain


def test_the_named_clusters_have_the_published_sizes() -> None:
    assert sum(node.devices for node in load_cluster("philly")) == 2_490
    assert len(load_cluster("philly")) == 552
    assert sum(node.devices for node in load_cluster("philly-480")) == 480


def test_files_describe_nodes(tmp_path: Path) -> None:
    yaml = tmp_path / "pool.yaml"
    yaml.write_text(
        "nodes:\n- {name: big, kind: H100, devices: 8, device_memory: 80GiB, domain: [dc1, r1]}\n"
        "- {count: 2, devices: 4}\n"
    )
    nodes = load_cluster(str(yaml))
    assert [(node.name, node.kind, node.devices) for node in nodes] == [
        ("big", "h100", 8),
        ("node-0001", "gpu", 4),
        ("node-0002", "gpu", 4),
    ]
    assert (nodes[0].device_memory, nodes[0].domain) == (80 * 2**30, ("dc1", "r1"))
    csv = tmp_path / "pool.csv"
    csv.write_text("name,kind,devices,domain\na,v100,4,dc1/r1\nb,v100,8,dc1/r2\n")
    assert [(node.name, node.devices, node.domain) for node in load_cluster(str(csv))] == [
        ("a", 4, ("dc1", "r1")),
        ("b", 8, ("dc1", "r2")),
    ]


def test_all_mistakes_of_a_file_come_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pool.csv"
    path.write_text("name,devices,colour\na,4,\nb b,4,\nc,99,\nd,4,red\na,2,\n")
    with pytest.raises(UsageError) as caught:
        load_cluster(str(path))
    for said in (":3: name 'b b'", ":4: 99 devices", ":5: unknown colour", "two nodes have the same name"):
        assert said in caught.value.message


@pytest.mark.parametrize("text", ["", "60*8", "0x8", "8x0", "philli", "/nowhere.yaml", "1x1,,"])
def test_nonsense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"write e\.g\. philly"):
        load_cluster(text)
