"""A machine for the few instructions of the PTX gate: one thread, run on a control block, to be compared with the reference."""

from __future__ import annotations

import re
from collections.abc import Callable

from tidewright.runtime.cuda.control import WORD_BYTES, CtaDecision
from tidewright.runtime.cuda.gate import CONTROL, KERNEL
from tidewright.runtime.cuda.ptx import GATE_PTX

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}


class PtxThread:
    """Registers by name. The control block begins at address 0, so that an address over four is a word."""

    def __init__(self, words: list[int], kernel: int, special: dict[str, int], text: str = GATE_PTX) -> None:
        self.words = words
        self._text = text
        self.registers: dict[str, int] = {f"[@{CONTROL}]": 0, f"[@{KERNEL}]": kernel, **special}
        self.answer = 0

    def run(self) -> CtaDecision:
        """What the first thread of the CTA decides for all."""
        lines = [line for line in self._text.splitlines() if line and line[0] not in ".{}"]
        labels = {line[:-1]: at for at, line in enumerate(lines) if line.endswith(":")}
        at = 0
        while at < len(lines):
            jump = self._step(lines[at])
            if jump == "exit":
                return CtaDecision.ABORT
            at = labels[jump] if jump else at + 1
        return CtaDecision.RUN

    def _step(self, line: str) -> str:
        """Carry out one line; the label to go on at, ``exit``, or nothing."""
        guarded = re.match(r"@(!?)(\w+) (.*)", line)
        if guarded:
            if bool(self.registers[guarded[2]]) == bool(guarded[1]):
                return ""
            line = guarded[3]
        if line.endswith(":"):
            return ""
        operation, _, rest = line.rstrip(";").partition(" ")
        if operation in ("bra", "exit"):
            return rest or "exit"
        operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
        self._execute(operation.split("."), operands)
        return ""

    def _value(self, operand: str) -> int:
        return int(operand) if operand.lstrip("-").isdigit() else self.registers[operand]

    def _word(self, operand: str) -> int:
        base, _, offset = operand.strip("[]").partition("+")
        address = self.registers[base] + int(offset or 0)
        assert address % WORD_BYTES == 0
        return address // WORD_BYTES

    def _execute(self, operation: list[str], operands: list[str]) -> None:
        target, *sources = operands
        name = operation[0]
        if name == "setp":
            result = COMPARE[operation[1]](self._value(sources[0]), self._value(sources[1]))
            if operation[2] in ("and", "or"):
                other = bool(self._value(sources[2]))
                result = result and other if operation[2] == "and" else result or other
            self.registers[target] = result
        elif name in ("ld", "st", "atom", "red"):
            self._memory(operation, target, sources)
        elif name == "mov" and target.startswith("{"):
            low, high = target.strip("{}").split(", ")
            self.registers[low], self.registers[high] = (
                self.registers[sources[0]] & 0xFFFFFFFF,
                self.registers[sources[0]] >> 32,
            )
        elif name != "bar":
            values = [self._value(one) for one in sources]
            self.registers[target] = self._arithmetic(name, values)

    @staticmethod
    def _arithmetic(name: str, values: list[int]) -> int:
        return {
            "mov": lambda: values[0],
            "cvta": lambda: values[0],
            "or": lambda: values[0] | values[1],
            "add": lambda: values[0] + values[1],
            "mul": lambda: values[0] * values[1],
            "mad": lambda: values[0] * values[1] + values[2],
            "selp": lambda: values[0] if values[2] else values[1],
        }[name]()

    def _memory(self, operation: list[str], target: str, sources: list[str]) -> None:
        if "param" in operation:
            self.registers[target] = self.registers[sources[0]]
        elif "shared" in operation:
            if operation[0] == "st":
                self.answer = self._value(sources[0])
            else:
                self.registers[target] = self.answer
        elif operation[0] in ("st", "red"):
            word, value = self._word(target), self._value(sources[0])
            self.words[word] = max(self.words[word], value) if "max" in operation else value
        else:
            word = self._word(sources[0])
            before = self.words[word]
            self.registers[target] = before | self.words[word + 1] << 32 if operation[-1] == "u64" else before
            if operation[0] == "atom":
                value = self._value(sources[1])
                self.words[word] = min(before, value) if "min" in operation else value
