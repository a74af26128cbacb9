"""The CTA gate in PTX, for kernels that come as PTX instead of Triton source: text in, text out.

Two parameters follow the kernel's own: the control block's address and the kernel's index. One thread of the CTA goes through
the gate and tells the others in shared memory. What ptxas has made into SASS already (most kernels of libraries) cannot be gated
this way.
"""

from __future__ import annotations

import re

from .control import ABORTED, CLOSED, GATE, MARKS, START, WORD_BYTES
from .exclusion import ASM_CLUSTER, ASM_DEPENDENT, Excluded, Exclusion
from .gate import CONTROL, KERNEL, GateRefused

LEAST_TARGET = 70
"""``ld.relaxed`` and ``atom.relaxed`` (PTX ISA, memory consistency model)."""
ENTRY = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak)\s+)*\.entry\s+(?P<name>[\w$]+)\s*(?:\((?P<parameters>[^)]*)\))?", re.MULTILINE
)
TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)", re.MULTILINE)
LABEL = re.compile(r"^\s*([\w$]+):", re.MULTILINE)
BRANCH = re.compile(r"\bbra(?:\.uni)?\s+([\w$]+)\s*;")
SHARED_WITH_OTHERS = re.compile(
    r"\b(?:ld\.(?:acquire|relaxed|volatile)(?!\S*\.shared)|atom\.(?!shared)|nanosleep|multimem\.ld_reduce)\S*"
)
EXTERN = re.compile(r"\.extern\s+\.func\b(?:\s*\([^)]*\))?\s*([\w$]+)")
KNOWN_FUNCTIONS = frozenset({"vprintf", "malloc", "free", "__assertfail"})
CLUSTER_DIRECTIVES = re.compile(
    r"\.(?:reqnctapercluster|explicitcluster|maxclusterrank)\b|\.cluster\b|%cluster|\bmapa\b"
)

MARK_OFFSET = MARKS * WORD_BYTES
# Labels and registers are local to the block in braces. tide_leave: 1 if the CTA leaves.
GATE_PTX = f"""\
{{
.reg .pred tide_p, tide_q;
.reg .b32 tide_thread, tide_x, tide_y, tide_z, tide_id, tide_low, tide_active, tide_begin, tide_before, tide_leave;
.reg .b64 tide_base, tide_word, tide_mark;
.shared .align 4 .b32 tide_answer;
mov.u32 tide_thread, %tid.x;
mov.u32 tide_y, %tid.y;
mov.u32 tide_z, %tid.z;
or.b32 tide_thread, tide_thread, tide_y;
or.b32 tide_thread, tide_thread, tide_z;
setp.ne.u32 tide_p, tide_thread, 0;
@tide_p bra TIDE_TOLD;
ld.param.u64 tide_base, [@{CONTROL}];
cvta.to.global.u64 tide_base, tide_base;
ld.param.u32 tide_id, [@{KERNEL}];
mov.u32 tide_leave, 0;
ld.relaxed.gpu.global.u64 tide_word, [tide_base+{GATE * WORD_BYTES}];
mov.b64 {{tide_low, tide_active}}, tide_word;
setp.gt.s32 tide_p, tide_id, tide_low;
setp.eq.and.s32 tide_p, tide_active, 0, tide_p;
@tide_p bra TIDE_DECIDED;
mov.u32 tide_leave, 1;
ld.relaxed.gpu.global.u32 tide_begin, [tide_base+{START * WORD_BYTES}];
setp.lt.s32 tide_p, tide_id, tide_begin;
@tide_p bra TIDE_DECIDED;
mov.u32 tide_x, %ctaid.z;
mov.u32 tide_y, %nctaid.y;
mov.u32 tide_z, %ctaid.y;
mad.lo.s32 tide_x, tide_x, tide_y, tide_z;
mov.u32 tide_y, %nctaid.x;
mov.u32 tide_z, %ctaid.x;
mad.lo.s32 tide_x, tide_x, tide_y, tide_z;
mul.wide.u32 tide_mark, tide_x, {WORD_BYTES};
add.s64 tide_mark, tide_base, tide_mark;
setp.eq.s32 tide_p, tide_low, {CLOSED};
setp.ne.or.s32 tide_p, tide_active, 0, tide_p;
@!tide_p bra TIDE_PARTIAL;
red.relaxed.gpu.global.max.s32 [tide_base+{GATE * WORD_BYTES}], {CLOSED};
atom.relaxed.gpu.global.min.s32 tide_before, [tide_base+{ABORTED * WORD_BYTES}], tide_id;
setp.ge.s32 tide_p, tide_before, tide_id;
setp.gt.and.s32 tide_q, tide_id, tide_begin, tide_p;
@tide_q st.relaxed.gpu.global.u32 [tide_mark+{MARK_OFFSET}], 1;
bra TIDE_DECIDED;
TIDE_PARTIAL:
atom.relaxed.gpu.global.exch.b32 tide_before, [tide_mark+{MARK_OFFSET}], 0;
setp.eq.s32 tide_p, tide_before, 0;
selp.u32 tide_leave, 1, 0, tide_p;
TIDE_DECIDED:
st.shared.u32 [tide_answer], tide_leave;
TIDE_TOLD:
bar.sync 0;
ld.shared.u32 tide_leave, [tide_answer];
setp.ne.u32 tide_p, tide_leave, 0;
@tide_p exit;
}}
"""


def gate_ptx(text: str, entry: str) -> str:
    """``text`` with the gate in kernel ``entry``. Its launches pass the control block's address (u64) and the index (u32) last.

    Raises GateRefused where there is no such entry, for an old target, and for kernels that must not be gated.
    """
    target = TARGET.search(text)
    if target is None or int(target[1]) < LEAST_TARGET:
        raise GateRefused(
            f"the target is {target[0].strip() if target else 'not named'}; sm_{LEAST_TARGET} or later is needed"
        )
    if (excluded := ptx_exclusion(text)) is not None:
        raise GateRefused(f"{excluded.reason.value}: {excluded.where}")
    found = next((one for one in ENTRY.finditer(text) if one["name"] == entry), None)
    if found is None:
        raise GateRefused(
            f"there is no entry {entry}; there are {', '.join(one['name'] for one in ENTRY.finditer(text)) or 'none'}"
        )
    if CONTROL in text or "TIDE_DECIDED" in text:
        raise GateRefused(f"{entry}: the text uses names of the gate already")
    names = {f"@{one}": f"{entry}_{one}" for one in (CONTROL, KERNEL)}
    body = text.index("{", found.end()) + 1
    gate = GATE_PTX
    for place, name in names.items():
        gate = gate.replace(f"[{place}]", f"[{name}]")
    return _with_parameters(text, found, list(names.values())) + text[found.end() : body] + "\n" + gate + text[body:]


def _with_parameters(text: str, entry: re.Match[str], names: list[str]) -> str:
    """The text up to the end of the entry's parameters, longer by the gate's two."""
    own = (entry["parameters"] or "").rstrip()
    added = f".param .u64 {names[0]},\n\t.param .u32 {names[1]}"
    head = text[: entry.start("parameters") - 1] if entry["parameters"] is not None else text[: entry.end()]
    return f"{head}({own},\n\t{added}\n)" if own.strip() else f"{head}(\n\t{added}\n)"


def ptx_exclusion(text: str) -> Excluded | None:
    """Why no kernel of this PTX may be gated, as ``exclusion`` for Triton source; None where all may."""
    for pattern, reason in (
        (ASM_DEPENDENT, Exclusion.DEPENDENT_LAUNCH),
        (CLUSTER_DIRECTIVES, Exclusion.CLUSTER),
        (ASM_CLUSTER, Exclusion.CLUSTER),
    ):
        if found := pattern.search(_code(text)):
            return Excluded(reason, found[0])
    unknown = [name for name in EXTERN.findall(text) if name not in KNOWN_FUNCTIONS]
    return Excluded(Exclusion.UNSEEN_HELPER, unknown[0]) if unknown else _spin_wait(_code(text))


def _spin_wait(text: str) -> Excluded | None:
    """A backward branch over a read of memory that other CTAs may write."""
    labels = {found[1]: found.start() for found in LABEL.finditer(text)}
    for branch in BRANCH.finditer(text):
        start = labels.get(branch[1], branch.end())
        if found := SHARED_WITH_OTHERS.search(text, start, max(start, branch.start())):
            return Excluded(Exclusion.SPIN_WAIT, f"loop at {branch[1]}: {found[0]}")
    return None


def _code(text: str) -> str:
    """Without comments, which name what the source was made of."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
