"""``tide nodes``."""

from __future__ import annotations

import click

from ...base.units import format_bytes
from ...wire.api import NodeView
from .. import output as out
from .. import words
from ..output import Column
from ..session import Session, pass_session

COLUMNS: list[Column[NodeView]] = [
    Column("NODE", lambda node: node.name, least=10, tail=True),
    Column("STATE", lambda node: node.state, style=lambda node: out.STATE_STYLE.get(node.state, "")),
    Column("KIND", lambda node: node.kind, leave=2),
    Column("DEVICES", lambda node: str(node.devices), right=True),
    Column("FREE", lambda node: str(node.free), right=True),
    Column("MEMORY", lambda node: format_bytes(node.device_memory) if node.device_memory else "-", right=True, leave=3),
    Column("CPUS", lambda node: cpus(node), wide=True, right=True),
    Column("HOST-MEMORY", lambda node: host_memory(node), wide=True, right=True),
    Column("LEVEL", lambda node: node.level or "-", wide=True),
    Column("FULL", lambda node: full(node), wide=True),
    Column("CRIU", lambda node: node.criu or "-", wide=True),
    Column("IMAGES", lambda node: str(node.images), wide=True, right=True),
    Column("ADDRESS", lambda node: node.address or "-", wide=True),
    Column("BUSY", lambda node: busy(node), wide=True),
    Column("SHARES", lambda node: shares(node), wide=True),
    Column("JOBS", lambda node: ",".join(map(str, node.jobs)) or "-", least=8, leave=1),
    Column("SUSPENDED", lambda node: ",".join(map(str, node.suspended)) or "-", wide=True),
    Column("NOTE", lambda node: note(node), least=14),
]


@click.command("nodes", short_help="List nodes.")
@out.output_options(lambda given: COLUMNS)
@pass_session
def command(session: Session, output: str, headers: bool) -> None:
    """List nodes, their devices and the jobs on them. MEMORY is of one device.

    NOTE says why a node takes no new work, and which devices are out of service. A cordoned node refused launches in a row; it is
    tried again after a while, or at once after `tide undrain NODE`.

    With -o wide: SUSPENDED are the jobs without devices whose memory or only image is on the node, SHARES is who has which share
    of which device (rt: real-time, be: best-effort), LEVEL the highest level at which jobs on the node can be suspended, FULL
    whether they can be imaged whole, moved and failed over, or why not, and CRIU the version of the program that does it. CPUS
    and HOST-MEMORY are what jobs asked for, of all that there is (-: not known).
    """
    reply = session.client().nodes()
    out.print_rows(reply.nodes, COLUMNS, output, headers, lambda node: node.name, reply)


def drained(node: NodeView) -> str:
    """Why and since when it is drained; empty for one that is not."""
    if node.state != "draining":
        return ""
    since = f", since {words.at(node.since)}" if node.since else ""
    return f"{node.why}{since}{'; jobs leave it' if node.moves else ''}"


def shares(node: NodeView) -> str:
    """Who shares which device: ``0: 17 rt 0.5 8.0GiB, 18 be 0.5 8.0GiB``."""
    by_device: dict[int, list[str]] = {}
    for one in node.shares:
        amounts = [f"{one.milli / 1000:g}"] if one.milli else []
        amounts += [format_bytes(one.memory)] if one.memory else []
        by_device.setdefault(one.device, []).append(" ".join([str(one.job), one.share_class, *amounts]))
    return "; ".join(f"{device}: {', '.join(held)}" for device, held in by_device.items()) or "-"


def note(node: NodeView) -> str:
    """Why it takes no new work, which devices are out of service, and what else is to be known."""
    return "; ".join(text for text in (drained(node) or node.why, out_of_service(node), node.note) if text)


def out_of_service(node: NodeView) -> str:
    """The devices that take no new work, those of one reason together: ``device 1-2: XID 79: ...``."""
    by_reason: dict[str, list[int]] = {}
    for device, why in sorted(node.faults.items()):
        by_reason.setdefault(why, []).append(device)
    return "; ".join(f"device {words.ranges(tuple(devices))}: {why}" for why, devices in by_reason.items())


def cpus(node: NodeView) -> str:
    """Host CPUs that jobs asked for, of all."""
    return f"{node.cpus_milli_asked / 1000:g}/{node.cpus or '-'}"


def host_memory(node: NodeView) -> str:
    """Host memory that jobs asked for, of all."""
    asked = format_bytes(node.memory_asked) if node.memory_asked else "0"
    return f"{asked}/{format_bytes(node.memory) if node.memory else '-'}"


def full(node: NodeView) -> str:
    """Whether jobs there can be imaged whole, or why not."""
    return "yes" if node.full else f"no: {node.full_why}" if node.full_why else "no"


def busy(node: NodeView) -> str:
    """Which jobs are on which devices: ``0-1:17 2:18+19``."""
    by_jobs: dict[tuple[int, ...], list[int]] = {}
    for device, jobs in enumerate(node.busy):
        if jobs:
            by_jobs.setdefault(jobs, []).append(device)
    return " ".join(f"{words.ranges(tuple(held))}:{'+'.join(map(str, jobs))}" for jobs, held in by_jobs.items()) or "-"
