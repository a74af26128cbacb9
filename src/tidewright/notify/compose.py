"""Messages from news: the text of a mail and the JSON of a webhook."""

from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..base.units import format_duration
from ..wire.api import NO_EXIT_CODE, JobView
from ..wire.calls.notify import NotifyReply
from .news import headline
from .outbox import Notification, new_id

SCHEMA = "tidewright.notification/v1"


def messages(kind: str, reply: NotifyReply, now: int, why: str = "", array: bool = False) -> list[Notification]:
    """One for each address and URL. ``why``: more than the job says itself; ``array``: it is about the whole array."""
    job, notify = reply.job, reply.notify
    subject = headline(kind, job)
    if array and kind in ("begin", "end", "fail"):
        said = {"begin": "has begun", "end": "has ended", "fail": "has ended, with failures"}[kind]
        subject = f"array {reply.array} ({job.name.partition('[')[0]}, {reply.size} members) {said}"
    common: dict[str, Any] = {"job": job.id, "kind": kind, "subject": subject, "created": now, "due": now}
    text = body(subject, job, why)
    found = [
        Notification(id=new_id(), channel="mail", target=one, site=one, body=text, **common) for one in notify.mail
    ]
    data = payload(kind, subject, reply, now, why)
    return found + [
        Notification(id=new_id(), channel="webhook", target=one, site=urlsplit(one).netloc, body=data, **common)
        for one in notify.webhooks
    ]


def body(subject: str, job: JobView, why: str) -> str:
    """The text of a mail. It holds nothing of the job's environment or output."""
    facts = [
        ("name", job.name), ("user", job.user), ("team", job.team), ("tier", job.tier), ("state", job.state),
        ("why", why or job.why), ("nodes", ", ".join(dict.fromkeys(held.node for held in job.where))),
        ("submitted", _at(job.submit)), ("started", _at(job.start)), ("ended", _at(job.end)),
        ("run time", format_duration(job.ideal_us) if job.ideal_us else ""),
        ("exit code", str(job.exit_code) if job.exit_code != NO_EXIT_CODE else ""),
        ("preempted", f"{job.preemptions} times" if job.preemptions else ""),
        ("fraction", f"{job.fraction:.0%} of full speed, {job.target:.0%} promised" if job.target and job.start > 0 else ""),
    ]  # fmt: skip
    lines = [f"{name:<10} {text}" for name, text in facts if text]
    return "\n".join([f"{subject[0].upper()}{subject[1:]}.", "", *lines, "", f"More: tide show {job.id}", ""])


def payload(kind: str, subject: str, reply: NotifyReply, now: int, why: str) -> str:
    """The JSON of a webhook; times are microseconds since 1970, 0: none."""
    job = reply.job
    shown = {
        "id": job.id, "name": job.name, "user": job.user, "team": job.team, "tier": job.tier, "state": job.state,
        "why": why or job.why, "attempt": job.attempt, "preemptions": job.preemptions,
        "nodes": list(dict.fromkeys(held.node for held in job.where)), "submit": job.submit, "start": max(job.start, 0),
        "end": max(job.end, 0), "exit_code": job.exit_code if job.exit_code != NO_EXIT_CODE else None,
        "fraction": round(job.fraction, 4), "target": job.target, "array": reply.array,
    }  # fmt: skip
    return msgspec.json.encode(
        {"schema": SCHEMA, "type": f"job.{kind}", "at": now, "text": subject, "job": shown}
    ).decode()


def _at(us: int) -> str:
    return datetime.datetime.fromtimestamp(us / 1e6).astimezone().isoformat(" ", "seconds") if us > 0 else ""
