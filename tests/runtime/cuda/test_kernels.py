"""A captured graph taken apart into its kernels, with a driver of Python for CUDA's: what is asked of it, and that nothing is
left. That CUDA's own answers so, a GPU will show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stub_libcuda import stub_libcuda
from tidewright.base.errors import UsageError, WorldError
from tidewright.runtime.cuda.kernels import GraphKernels, bound_of, scaled
from tidewright.runtime.padding.nvidia_rule import Roofline


class Status(int):
    name = "CUDA_ERROR_INVALID_VALUE"


OK = Status(0)


class Driver:
    """Graphs are lists of nodes, nodes numbers. ``edges``: node to those that depend on it. Lists come with edges' data, as in
    CUDA 13, or without."""

    def __init__(self, kinds: list[str], edges: dict[int, list[int]], data: bool = True, broken: str = "") -> None:
        self.kinds, self.edges, self.data, self.broken = kinds, edges, data, broken
        self.graphs: dict[int, list[Any]] = {}
        self.executables: dict[int, int] = {}
        self.launched: list[tuple[list[Any], int]] = []
        self._next = 100

    def _new(self) -> int:
        self._next += 1
        return self._next

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("cu") and name == object.__getattribute__(self, "broken"):
            return lambda *_: (Status(1), None)
        return found

    def cuCtxGetCurrent(self) -> Any:  # noqa: N802
        return OK, "context"

    def _some(self, nodes: list[int], count: int) -> Any:
        return (OK, nodes[:count], [None] * count, len(nodes)) if self.data else (OK, nodes[:count], len(nodes))

    def cuGraphGetRootNodes(self, graph: Any, count: int) -> Any:  # noqa: N802
        return OK, [0][:count], 1

    def cuGraphNodeGetDependentNodes(self, node: int, count: int) -> Any:  # noqa: N802
        return self._some(self.edges.get(node, []), count)

    def cuGraphNodeGetType(self, node: int) -> Any:  # noqa: N802
        return OK, SimpleNamespace(name=f"CU_GRAPH_NODE_TYPE_{self.kinds[node]}")

    def cuGraphCreate(self, flags: int) -> Any:  # noqa: N802
        graph = self._new()
        self.graphs[graph] = []
        return OK, graph

    def cuGraphDestroy(self, graph: int) -> Any:  # noqa: N802
        del self.graphs[graph]
        return (OK,)

    def cuGraphInstantiate(self, graph: int, flags: int) -> Any:  # noqa: N802
        executable = self._new()
        self.executables[executable] = graph
        return OK, executable

    def cuGraphExecDestroy(self, executable: int) -> Any:  # noqa: N802
        del self.executables[executable]
        return (OK,)

    def cuGraphLaunch(self, executable: int, stream: int) -> Any:  # noqa: N802
        self.launched.append((self.graphs[self.executables[executable]], stream))
        return (OK,)

    def cuGraphKernelNodeGetParams(self, node: int) -> Any:  # noqa: N802
        library = node % 2  # those are known by a handle of the library only
        sizes = {"gridDimX": 10 + node, "gridDimY": 2, "gridDimZ": 3, "blockDimX": 32, "blockDimY": 4, "blockDimZ": 1}
        return OK, SimpleNamespace(func=0 if library else node + 1, kern=node, sharedMemBytes=1000, node=node, **sizes)

    def cuKernelGetFunction(self, kernel: int) -> Any:  # noqa: N802
        return OK, kernel + 1

    def cuGraphAddKernelNode(self, graph: int, before: Any, count: int, given: Any) -> Any:  # noqa: N802
        assert before is None and count == 0
        self.graphs[graph].append(given.node)
        return OK, f"copy of {given.node}"

    def cuGraphKernelNodeCopyAttributes(self, copy: str, node: int) -> Any:  # noqa: N802
        assert copy == f"copy of {node}"
        return (OK,)

    def cuFuncGetName(self, function: int) -> Any:  # noqa: N802
        return OK, f"triton_poi_fused_{function - 1}".encode()

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: int, threads: int, shared: int) -> Any:  # noqa: N802
        assert (threads, shared) == (128, 1000)
        return OK, 4

    def cuGraphMemsetNodeGetParams(self, node: int) -> Any:  # noqa: N802
        return OK, f"memset {node}"

    def cuGraphAddMemsetNode(self, graph: int, before: Any, count: int, given: str, context: str) -> Any:  # noqa: N802
        assert context == "context"
        self.graphs[graph].append(given)
        return OK, 0

    def cuGraphMemcpyNodeGetParams(self, node: int) -> Any:  # noqa: N802
        return OK, f"memcpy {node}"

    cuGraphAddMemcpyNode = cuGraphAddMemsetNode  # noqa: N815


GRAPH = SimpleNamespace(raw_cuda_graph=lambda: 7)
LINE = {0: [1], 1: [2], 2: [3]}
KINDS = ["KERNEL", "KERNEL", "MEMSET", "MEMCPY"]


@pytest.mark.parametrize("data", [False, True])
def test_each_node_is_launched_by_itself_in_the_order_of_the_graph(data: bool) -> None:
    driver = Driver(KINDS, LINE, data)
    found = GraphKernels(GRAPH, driver)
    assert [one.name for one in found.kernels] == ["triton_poi_fused_0", "triton_poi_fused_1", "memset", "memcpy"]
    first = found.kernels[0].facts
    assert (first.grid, first.occupancy, first.sms, first.bound) == (60, 4, 15, Roofline.MEMORY)
    stream = SimpleNamespace(cuda_stream=55)
    for one in found.kernels:
        one.launch(stream)
    assert driver.launched == [([0], 55), ([1], 55), (["memset 2"], 55), (["memcpy 3"], 55)]
    found.release()
    assert not driver.graphs and not driver.executables and not found.kernels


@pytest.mark.parametrize(
    ("kinds", "edges", "broken", "error"),
    [
        (KINDS, {0: [1, 2]}, "", UsageError),
        (["KERNEL", "HOST"], {0: [1]}, "", UsageError),
        (KINDS, LINE, "cuGraphInstantiate", WorldError),
        (KINDS, LINE, "cuGraphAddMemsetNode", WorldError),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_and_nothing_is_left(
    kinds: list[str], edges: dict[int, list[int]], broken: str, error: type[Exception]
) -> None:
    driver = Driver(kinds, edges, broken=broken)
    with pytest.raises(error):
        GraphKernels(GRAPH, driver)
    assert not driver.graphs and not driver.executables


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("triton_tem_fused_convolution_3", Roofline.COMPUTE),
        ("sm90_xmma_gemm_f16f16", Roofline.COMPUTE),
        ("triton_red_fused_mean_1", Roofline.MEMORY),
        ("triton_poi_fused__native_batch_norm_legit_no_training_convolution_relu_1", Roofline.MEMORY),
        ("_ZN2at6native29vectorized_elementwise_kernelI", Roofline.MEMORY),
        ("my_kernel", Roofline.UNKNOWN),
    ],
)
def test_what_bounds_a_kernel_is_guessed_from_its_name(name: str, bound: Roofline) -> None:
    assert bound_of(name) is bound


def test_times_of_kernels_add_up_to_that_of_their_graph() -> None:
    assert scaled([30, 20, 50], 50) == [15, 10, 25]
    assert scaled([30, 20, 50], 200) == [30, 20, 50], "between kernels of a graph there may be gaps"


PASSES = """
from types import SimpleNamespace
from tidewright.runtime.cuda.kernels import GraphKernels
found = GraphKernels(SimpleNamespace(raw_cuda_graph=lambda: 7))
for one in found.kernels:
    print(one.name, one.facts.grid, one.facts.occupancy, one.facts.bound.value)
    one.launch(SimpleNamespace(cuda_stream=55))
found.release()
"""


@pytest.mark.processes
def test_the_bindings_pass_it_all_on_to_the_driver(tmp_path: Path) -> None:
    """Through the real bindings into a library that has the driver's interface, and no device."""
    environment = stub_libcuda(Path(__file__).with_name("libcuda_graphs.c"), tmp_path)
    command = [sys.executable, "-c", PASSES]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == [
        "triton_red_fused_1 20 5 memory", "memset 1 1 memory", "sm90_xmma_gemm 60 5 compute"
    ], ran.stderr  # fmt: skip
    assert ran.stderr.splitlines() == [
        "kernel in 101 after 0: 501/0 grid 10 2 1 block 128 shared 4096 argument 42", "attributes 2101 from 1",
        "memset in 102 after 0: 4711 value 9 x 16 in 77",
        "kernel in 103 after 0: 0/603 grid 30 2 1 block 128 shared 4096 argument 42", "attributes 2103 from 3",
        "launch 1101 on 55", "launch 1102 on 55", "launch 1103 on 55",
        "destroy executable 1101", "destroy 101", "destroy executable 1102", "destroy 102",
        "destroy executable 1103", "destroy 103",
    ]  # fmt: skip
