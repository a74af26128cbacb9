"""What earlier versions wrote, in the shape of this one: where there was a sentence, a cause of code ``Text`` that holds it.

Commands, histories and records of jobs held sentences, in steps of journals, archived jobs, and snapshots of formats 1 and 2.
Snapshots up to format 4 counted the members of arrays by the arrays' names.
Stored bytes stay as they are: these functions change plain values (dicts, lists) after decoding.
"""

from __future__ import annotations

from typing import Any

from ...model.cause import Code

Plain = dict[str, Any]


def text(sentence: Any, remedy: str = "", code: Code = Code.TEXT) -> Any:
    """A sentence as a cause; a cause stays one."""
    if not isinstance(sentence, str):
        return sentence
    return {"code": code.value, "args": [sentence, remedy] if remedy else [sentence]}


def command(item: Plain) -> None:
    """A command of a journaled step."""
    kind = item.get("type")
    if kind == "Reply":
        reply(item)
    elif kind == "StopRanks":
        _field(item, "why")
    elif kind == "Ended":
        ended(item)


def ended(item: Plain) -> None:
    """The record of a job that has ended."""
    _field(item, "why")
    if "story" in item:
        item["story"] = _history(item["story"])


def reply(item: Plain) -> None:
    """An answer to a user."""
    if "error" in item:
        item["error"] = text(item["error"], item.pop("remedy", ""))
    _field(item, "warning")


def snapshot(data: Plain) -> None:
    """A snapshot of format 1 or 2."""
    for answer in data.get("answers", {}).values():
        reply(answer)
    for cordon in data.get("outages", {}).get("cordoned", {}).values():
        _field(cordon, "why")
    for record in data.get("jobs", {}).values():
        _record(record)
    _of_format_1(data)


def arrays(data: Plain) -> None:
    """A snapshot of format 4 or before: which jobs are members of arrays with a limit, and which of them wait for it."""
    data.pop("array_active", None)
    queues = data.pop("array_queue", {})
    specs = data.get("specs") or {job: record["spec"] for job, record in data.get("jobs", {}).items()}
    waiting = data.get("array_waiting", {}).keys() | {
        job for job, record in data.get("jobs", {}).items() if record.get("waiting_array") is not None
    }
    found: dict[str, Plain] = {}
    for job, spec in specs.items():
        member = spec.get("array")
        if member and member.get("limit"):
            array = found.setdefault(member["parent"], {"members": {}})
            array["limit"] = member["limit"]
            array["members"][job] = True
    for name, array in found.items():
        array["waiting"] = {job: True for job in queues.get(name, ()) if job in waiting}
    data["arrays"] = found


def _record(record: Plain) -> None:
    if "history" in record:
        record["history"] = _history(record["history"])
    for name in ("ending", "level_cap"):
        if record.get(name):
            _field(record[name], "why")
    if record.get("hold_retry"):
        _retry(record["hold_retry"])


def _of_format_1(data: Plain) -> None:
    """A dict by job for each fact."""
    stories = data.get("stories", {})
    stories.update({job: _history(lines) for job, lines in stories.items()})
    for name in ("ending", "lowered"):
        facts = data.get(name, {})
        facts.update({job: [number, text(why)] for job, (number, why) in facts.items()})
    for retry in data.get("hold_retries", {}).values():
        _retry(retry)


def _retry(retry: Plain) -> None:
    """What an agent reported: it is compared with what is reported next."""
    retry["error"] = text(retry["error"], code=Code.REPORTED)


def _history(lines: list[list[Any]]) -> list[list[Any]]:
    return [[at, what, text(why)] for at, what, why in lines]


def _field(item: Plain, name: str) -> None:
    if name in item:
        item[name] = text(item[name])
