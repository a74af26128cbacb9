"""Writes docs/codes.md, the table of codes with their arguments and sentences: ``python tools/make_code_docs.py [--check]``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from tidewright.model.cause import Cause, Code
from tidewright.plan.advice import CONSEQUENCE, REMEDIES
from tidewright.plan.reasons import Reason
from tidewright.plan.render import named_kinds, signature
from tidewright.plan.sentences import GROUPS, SENTENCES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "codes.md"
HEAD = """\
# Codes

Written by `tools/make_code_docs.py` from the tables in `plan/sentences.py`; a test keeps it current.

Whatever says *why* (moves, refusals, warnings, a job's history and how it ended) is a **code** of a closed list and its
**arguments**. The journal holds these and scripts should match these; the sentences are made of them in one place and may change
in any version. In JSON (`tide why -o json`, `tide show -o json`, the API) each text has the same as data beside it, as `cause`,
`level_cause` or `change_cause`:

```json
{"code": "RolledBack", "args": {"lost": 41000000, "serial": 1}, "text": "rolled back 41s to image 1"}
```

Durations are microseconds, sizes bytes. An argument of the kind *cause* is another such object, *list* a list. A released code
keeps its meaning and its arguments. [Why it is done this way](why/reasons.md).

## Limits of waiting jobs

`reason` of a waiting job names the limit that keeps it waiting; `consequence` says what happens next. A limit of the
pool is one that another request, other jobs or more nodes may lift: `tide why` looks for such changes, and names devices out of
service.

| reason | of the pool | what happens next |
|---|---|---|
"""
TYPES: dict[type, str] = {str: "text", int: "number", Cause: "cause", tuple: "list"}


def page() -> str:
    """The whole page."""
    limits = "\n".join(
        f"| `{reason.value}` | {'yes' if reason.of_the_pool else 'no'} | {CONSEQUENCE[reason]} |" for reason in Reason
    )
    return HEAD + limits + "\n" + "\n".join(_group(title, codes) for title, codes in GROUPS.items())


def _group(title: str, codes: tuple[Code, ...]) -> str:
    return f"\n## {title}\n\n| code | arguments | sentence |\n|---|---|---|\n" + "\n".join(map(_row, codes)) + "\n"


def _row(code: Code) -> str:
    todo = f"<br>*{_plain(REMEDIES[code])}*" if code in REMEDIES else ""
    return f"| `{code.value}` | {', '.join(_arguments(code)) or '–'} | {_plain(SENTENCES[code])}{todo} |"


def _arguments(code: Code) -> Iterator[str]:
    kinds = named_kinds(code)
    for name, kind in signature(code).items():
        unit = {"us": "µs", "seconds": "µs", "bytes": "bytes", "gib": "bytes", "mib": "bytes", "milli": "thousandths",
                "cpus": "thousandths", "host_cpus": "thousandths", "fraction": "thousandths"}.get(kinds[name])  # fmt: skip
        yield f"`{name}` ({unit or TYPES[kind]})"


def _plain(template: str) -> str:
    several = re.sub(r"\{\w+:(be|es|s)\}", lambda kind: {"be": "are"}.get(kind[1], kind[1]), template)
    return re.sub(r"\{(\w+):?\w*\}", r"‹\1›", several.replace("{kinds:kinds}", "{kinds} "))


def main() -> int:
    """Write the page, or with ``--check`` compare it."""
    if "--check" in sys.argv[1:]:
        fresh = PAGE.read_text() == page()
        print("docs/codes.md is fresh" if fresh else "docs/codes.md is stale: run python tools/make_code_docs.py")
        return int(not fresh)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
