"""Kernels whose CTAs depend on each other are recognized; ordinary ones are not."""

from __future__ import annotations

import pytest

from tidewright.runtime.cuda.exclusion import SENTENCES, Exclusion, exclusion
from tidewright.runtime.cuda.ladder import PTX_ALLOWED, DeviceAbilities, GateLevel, choose

from .sources import BY_HAND, COOPERATIVE, HEAD, INDUCTOR

BODY = "@triton.jit\ndef kernel(p, locks, BLOCK: tl.constexpr):\n    {}\n"
ASM = "x = tl.inline_asm_elementwise('{}', '=r,r', [p], dtype=tl.int32, is_pure=True, pack=1)"


def kernel(body: str) -> str:
    return HEAD + BODY.format(body.replace("\n", "\n    "))


EXCLUDED = {
    "cooperative reduction": (COOPERATIVE, Exclusion.COOPERATIVE),
    "cooperative launch": (
        INDUCTOR.replace("'launch_pdl': False", "'launch_cooperative_grid': True"),
        Exclusion.COOPERATIVE,
    ),
    "barrier of the grid": (
        INDUCTOR.replace("x0 = xindex", "triton_helpers.x_grid_barrier(in_ptr0)"),
        Exclusion.GRID_SYNC,
    ),
    "look-back scan": (
        INDUCTOR.replace("x0 = xindex", "triton_helpers.exclusive_scan_decoupled_lookback(in_ptr0)"),
        Exclusion.SPIN_WAIT,
    ),
    "lock": (kernel("while tl.atomic_cas(locks, 0, 1) == 1:\n    pass"), Exclusion.SPIN_WAIT),
    "wait in the body": (kernel("done = 0\nwhile done == 0:\n    done = tl.atomic_add(locks, 0)"), Exclusion.SPIN_WAIT),
    "volatile wait": (
        kernel("done = 0\nwhile done == 0:\n    done = tl.load(locks, volatile=True)"),
        Exclusion.SPIN_WAIT,
    ),
    "load in the condition": (kernel("while tl.load(locks) == 0:\n    pass"), Exclusion.SPIN_WAIT),
    "stream-K": (kernel("pass").replace("def kernel", "def streamk_matmul"), Exclusion.STREAM_K),
    "dependent launch": (INDUCTOR.replace("'launch_pdl': False", "'launch_pdl': True"), Exclusion.DEPENDENT_LAUNCH),
    "dependent launch, computed": (
        INDUCTOR.replace("'launch_pdl': False", "'launch_pdl': WANTED"),
        Exclusion.DEPENDENT_LAUNCH,
    ),
    "dependent wait": (kernel("tl.extra.cuda.gdc_wait()"), Exclusion.DEPENDENT_LAUNCH),
    "cluster": (
        HEAD + "@triton.autotune([triton.Config({}, num_ctas=2)], key=[])\n" + BODY.format("pass"),
        Exclusion.CLUSTER,
    ),
    "cluster dimensions": (INDUCTOR.replace("'launch_pdl': False", "'cluster_dims': (2, 1, 1)"), Exclusion.CLUSTER),
    "assembly with a barrier": (kernel(ASM.format("bar.sync 0;")), Exclusion.OPAQUE_ASSEMBLY),
    "assembly with a load": (kernel(ASM.format("ld.acquire.gpu.u32 $0, [$1];")), Exclusion.OPAQUE_ASSEMBLY),
    "assembly of a dependent launch": (kernel(ASM.format("griddepcontrol.wait;")), Exclusion.DEPENDENT_LAUNCH),
    "assembly of a cluster": (kernel(ASM.format("barrier.cluster.arrive;")), Exclusion.CLUSTER),
    "function from elsewhere": (
        HEAD + "from mine import helper\n" + BODY.format("tl.store(p, helper(locks))"),
        Exclusion.UNSEEN_HELPER,
    ),
    "function of unknown origin": (kernel("tl.store(p, helper(locks))"), Exclusion.UNSEEN_HELPER),
}


@pytest.mark.parametrize("name", EXCLUDED)
def test_kernels_that_wait_for_others_are_excluded(name: str) -> None:
    text, reason = EXCLUDED[name]
    found = exclusion(text)
    assert found is not None and found.reason is reason
    assert found.where


@pytest.mark.parametrize(
    "text",
    [
        BY_HAND,
        INDUCTOR,
        kernel("i = 0\nwhile i < 4:\n    i += tl.load(p)"),
        kernel("tl.atomic_add(p, 1)"),
        kernel(ASM.format("mul.lo.s32 $0, $1, 3;")),
        HEAD + "@triton.autotune([triton.Config({}, num_ctas=1)], key=[])\n" + BODY.format("pass"),
    ],
)
def test_ordinary_kernels_are_not(text: str) -> None:
    assert exclusion(text) is None


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Exclusion)


def test_levels() -> None:
    assert choose(None) is GateLevel.CTA_GATE
    for reason in Exclusion:
        found = exclusion(COOPERATIVE)
        assert found
        excluded = type(found)(reason, "here")
        assert choose(excluded) is GateLevel.BOUNDED
        assert choose(excluded, ptx=True) is (GateLevel.PTX_GATE if reason in PTX_ALLOWED else GateLevel.BOUNDED)
        assert choose(excluded, device=DeviceAbilities(segments=False)) is GateLevel.PRIORITY
        assert choose(excluded, device=DeviceAbilities(segments=False, priorities=False)) is GateLevel.SEQUENTIAL
    assert [level.code for level in GateLevel] == ["G0", "G1", "G2", "G3", "G4"]
