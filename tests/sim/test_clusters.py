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
    for said in (
        ":3: name 'b b'",
        ":4: devices: 99 is not a whole number between 1 and 64",
        ":5: unknown colour",
        "two nodes have the same name",
    ):
        assert said in caught.value.message


@pytest.mark.parametrize("text", ["", "60*8", "0x8", "8x0", "philli", "/nowhere.yaml", "1x1,,"])
def test_nonsense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"write e\.g\. philly"):
        load_cluster(text)


SWITCHES = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"name,devices\n\xff,4\n", "a.csv: it is not text in UTF-8"),
        ("a.yaml", b"- {name: \xff}\n", "a.yaml: it is not text in UTF-8"),
        ("a.yaml", b"- {name: 2024-13-45}\n", "cannot read cluster"),
        ("a.csv", SWITCHES.encode() + b"1,4,4,,\nx,4,4,,\n", "a.csv:3: num_switch: x is not a whole number"),
        ("a.csv", SWITCHES.encode() + b"1,4\n", "a.csv:2: num_gpu_p_node: missing"),
        ("a.csv", SWITCHES.encode() + b"1,4,,,\n", "a.csv:2: num_gpu_p_node: missing"),
        ("a.csv", b"name,devices\n\n\na,4\nb,x\n", "a.csv:5: devices: x is not"),
        ("a.csv", b"name,devices\na,4,5\n", "a.csv:2: unknown cell 3"),
        ("a.csv", b"name,devices,devices\na,4,8\n", "a.csv:1: two columns are called devices"),
        ("a.csv", b'name,devices\n"a,4\nb,4\n', "a.csv:2: a quote opens here"),
        ("a.yaml", b"- {count: 2, per_domain: 0}\n", "node 1: per_domain: 0 is not"),
        ("a.yaml", b"- {count: .inf}\n", "count: inf is not"),
        ("a.yaml", b"- {count: 2.9}\n", "count: 2.9 is not"),
        ("a.yaml", b"- {count: true}\n", "count: True is not"),
        ("a.yaml", b"- {devices: 8.7}\n", "devices: 8.7 is not"),
        ("a.yaml", b"- {cpus: -5}\n", "cpus: -5 is not"),
        ("a.yaml", b"- {domain: [[1], 2]}\n", "domain: [[1], 2] is neither"),
        ("a.yaml", b"- {domain: }\n", "domain: None is neither"),
        ("a.yaml", b"- {kind: [a]}\n", "kind: ['a'] is not a name"),
    ],
)
def test_what_a_file_must_not_say(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_cluster(str(path))
    assert said in caught.value.message and caught.value.remedy


def test_files_of_other_programs(tmp_path: Path) -> None:
    path = tmp_path / "pool.csv"
    path.write_bytes(b"\xef\xbb\xbfname,devices,cpus\r\na,4,8\r\n\r\nb,8,\r\n")
    assert [(node.name, node.devices, node.cpus) for node in load_cluster(str(path))] == [("a", 4, 8), ("b", 8, 0)]
    path.write_text(SWITCHES + "2,3,4,16,64\n")
    nodes = load_cluster(str(path))
    assert len(nodes) == 6 and {(node.devices, node.cpus, node.memory) for node in nodes} == {(4, 16, 64 * 10**9)}
    assert [node.domain for node in nodes] == [("rack-000",)] * 3 + [("rack-001",)] * 3
    yaml = tmp_path / "pool.yaml"
    yaml.write_text("- {count: 2.0, devices: '8', domain: [1, a]}\n")
    assert [(node.devices, node.domain) for node in load_cluster(str(yaml))] == [(8, ("1", "a"))] * 2
