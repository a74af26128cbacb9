"""The gate in PTX: the same decisions as the reference, accepted by ptxas, kept out of kernels that wait for others."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tidewright.runtime.cuda.control import CLOSED, CtaDecision, decide
from tidewright.runtime.cuda.exclusion import Exclusion
from tidewright.runtime.cuda.gate import GateRefused
from tidewright.runtime.cuda.ptx import GATE_PTX, gate_ptx, ptx_exclusion

from .ptx_machine import PtxThread

REVERSE = """\
.version 8.0
.target sm_90
.address_size 64

	// .globl	reverse
.visible .entry reverse(
	.param .u64 reverse_param_0,
	.param .u32 reverse_param_1
)
.maxntid 128, 1, 1
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<8>;
	.reg .b64 	%rd<6>;
	.shared .align 4 .b8 tile[512];

	ld.param.u64 	%rd1, [reverse_param_0];
	ld.param.u32 	%r1, [reverse_param_1];
	cvta.to.global.u64 	%rd2, %rd1;
	mov.u32 	%r2, %tid.x;
	mul.wide.u32 	%rd3, %r2, 4;
	add.s64 	%rd4, %rd2, %rd3;
	ld.global.u32 	%r3, [%rd4];
	add.s32 	%r4, %r3, %r1;
	mov.u32 	%r5, tile;
	shl.b32 	%r6, %r2, 2;
	add.s32 	%r5, %r5, %r6;
	st.shared.u32 	[%r5], %r4;
	bar.sync 	0;
	ld.shared.u32 	%r7, [%r5];
	st.global.u32 	[%rd4], %r7;
	ret;
}
"""


def loop(load: str) -> str:
    """The kernel, reading with ``load`` until it finds something."""
    again = f"$AGAIN:\n\t{load} \t%r3, [%rd4];\n\tsetp.eq.s32 %p1, %r3, 0;\n\t@%p1 bra $AGAIN;"
    return REVERSE.replace("\tld.global.u32 \t%r3, [%rd4];", again)


def differences(text: str = GATE_PTX) -> tuple[int, set[CtaDecision]]:
    """States of the control block in which ``text`` decides or writes otherwise than the reference, and all decisions of that."""
    special = {"%tid.x": 0, "%tid.y": 0, "%tid.z": 0, "%nctaid.x": 3, "%nctaid.y": 2, "%ctaid.z": 0, "%ctaid.y": 1}
    count, seen = 0, set()
    for kernel, start, closed, active, aborted, mark, x in itertools.product(
        (1, 2, 3), (0, 1, 2, 3), (False, True), (0, 1, 2), (1, 2, CLOSED), (0, 1), (0, 2)
    ):
        words = [CLOSED if closed else start, active, aborted, start, *[0] * 6]
        words[4 + 3 + x] = mark
        reference = list(words)
        expected = decide(reference, kernel, 3 + x)
        found = PtxThread(words, kernel, special | {"%ctaid.x": x}, text).run()
        count += (found is CtaDecision.RUN) != (expected is CtaDecision.RUN) or words != reference
        seen.add(expected)
    return count, seen


def test_decisions_are_those_of_the_reference() -> None:
    """In every state of the control block that there can be, and others; the words afterwards, too."""
    assert differences() == (0, set(CtaDecision))


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("red.relaxed.gpu.global.max.s32", ""),  # not sticky
        ("atom.relaxed.gpu.global.exch.b32", "mov.u32 tide_before, 1;"),  # the partial kernel restarts
        ("setp.gt.and.s32 tide_q", "setp.ge.and.s32 tide_q, tide_id, tide_begin, tide_p;"),  # marks again what has run
        ("setp.ne.or.s32", ""),  # a request alone does not close the gate
    ],
)
def test_known_wrong_gates_differ(line: str, instead: str) -> None:
    wrong = "\n".join(instead if one.startswith(line) else one for one in GATE_PTX.splitlines())
    assert differences(wrong)[0] > 0


def test_other_threads_only_wait_for_the_answer() -> None:
    words = [0, 1, CLOSED, 0, 0]
    thread = PtxThread(words, 1, {"%tid.x": 0, "%tid.y": 0, "%tid.z": 5})
    thread.answer = 1
    assert thread.run() is CtaDecision.ABORT
    assert words == [0, 1, CLOSED, 0, 0]


def test_parameters_come_last() -> None:
    gated = gate_ptx(REVERSE, "reverse")
    assert re.findall(r"\.param \.(\w+) (\w+)", gated) == [
        ("u64", "reverse_param_0"),
        ("u32", "reverse_param_1"),
        ("u64", "reverse_tide_ctl"),
        ("u32", "reverse_tide_kid"),
    ]
    none = re.sub(r"reverse\(\n.*?\n\)", "reverse()", REVERSE, flags=re.DOTALL)
    assert len(re.findall(r"\.param \.", gate_ptx(none, "reverse"))) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (loop("ld.acquire.gpu.global.u32"), Exclusion.SPIN_WAIT),
        (loop("ld.volatile.global.u32"), Exclusion.SPIN_WAIT),
        (REVERSE.replace("bar.sync \t0;", "griddepcontrol.wait;"), Exclusion.DEPENDENT_LAUNCH),
        (REVERSE.replace("bar.sync \t0;", "barrier.cluster.arrive;"), Exclusion.CLUSTER),
        (REVERSE.replace(".maxntid 128, 1, 1", ".reqnctapercluster 2"), Exclusion.CLUSTER),
        (
            REVERSE.replace(".visible .entry", ".extern .func (.param .b32 r) wait_for_all\n;\n.visible .entry"),
            Exclusion.UNSEEN_HELPER,
        ),
    ],
)
def test_kernels_that_wait_for_others_are_refused(text: str, reason: Exclusion) -> None:
    assert text != REVERSE
    found = ptx_exclusion(text)
    assert found is not None and found.reason is reason
    with pytest.raises(GateRefused):
        gate_ptx(text, "reverse")


def test_ordinary_loops_are_not_refused() -> None:
    for load in ("ld.global.u32", "ld.volatile.shared.u32"):
        assert ptx_exclusion(loop(load)) is None
    assert ptx_exclusion(REVERSE + "// griddepcontrol\n") is None


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (REVERSE, "forward"),
        (REVERSE.replace("sm_90", "sm_61"), "reverse"),
        (gate_ptx(REVERSE, "reverse"), "reverse"),
        ("", "reverse"),
    ],
)
def test_what_cannot_be_gated_is_refused(text: str, entry: str) -> None:
    with pytest.raises(GateRefused):
        gate_ptx(text, entry)


def ptxas() -> str:
    """The program, from the toolkit or from Triton."""
    found = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
    if found is None:
        triton = pytest.importorskip("triton", reason="there is no ptxas here, neither CUDA's nor Triton's")
        found = str(Path(triton.__file__).parent / "backends/nvidia/bin/ptxas")
    return found


def registers(text: str, folder: Path) -> int:
    """Of the kernel that ptxas makes of ``text``; spilled registers are a failure."""
    (folder / "kernel.ptx").write_text(text)
    command = [ptxas(), "-v", "-arch=sm_90", str(folder / "kernel.ptx"), "-o", str(folder / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    assert not re.search(r"[1-9]\d* bytes spill", report)
    used = re.search(r"Used (\d+) registers", report)
    assert used, report
    return int(used[1])


def test_ptxas_accepts_the_gate_and_needs_few_registers_more(tmp_path: Path) -> None:
    assert registers(gate_ptx(REVERSE, "reverse"), tmp_path) <= registers(REVERSE, tmp_path) + 8


CUDA_SOURCE = """
extern "C" __global__ void scale(float *values, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = at; i < n; i += gridDim.x * blockDim.x) values[i] *= 3.0f;
}
extern "C" __global__ void sum(const float *values, float *total) {
    __shared__ float part[128];
    part[threadIdx.x] = values[blockIdx.x * 128 + threadIdx.x];
    for (int half = 64; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    }
    if (!threadIdx.x) atomicAdd(total, part[0]);
}
"""


def test_kernels_of_nvcc(tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("there is no nvcc here (CUDA toolkit)")
    (tmp_path / "kernels.cu").write_text(CUDA_SOURCE)
    command = [nvcc, "-arch=compute_90", "-ptx", str(tmp_path / "kernels.cu"), "-o", str(tmp_path / "kernels.ptx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nvcc cannot compile here: {done.stderr.strip()[-200:]}")
    text = (tmp_path / "kernels.ptx").read_text()
    for entry in ("scale", "sum"):
        assert registers(gate_ptx(text, entry), tmp_path) <= 32
