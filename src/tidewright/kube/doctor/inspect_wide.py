"""What ``tide kube inspect -o wide`` adds to gpushare's tables: isolation, health, stranded memory, the plugin, use. Pure."""

from __future__ import annotations

from collections import Counter

from ..client.timestamps import seconds
from ..objects.heartbeat import SILENT_BEATS, read
from .inspect_tables import Inspection, NodeShares, PodShare, details, summary

TITLES = ("ISOLATION", "UNHEALTHY", "STRANDED", "PLUGIN")
Sizes = Counter[int]
"""How many pods ask so many units of one GPU."""


def wide(found: Inspection, now_s: float) -> str:
    """The table with four more columns. ``now_s``: seconds since 1970, for the age of heartbeats."""
    sizes = asked(found)

    def more(node: NodeShares) -> list[str]:
        sick = ",".join(str(card.index) for card in node.inventory.cards if not card.ok)
        left = ",".join(
            str(stranded(max(0, size.units - size.foreign - node.on(size.index)), sizes))
            for size in node.inventory.cards
        )
        return [node.level or "-", sick or "-", left if sizes else "-", plugin(node.heartbeat, now_s)]

    return summary(found, TITLES, more)


def wide_details(found: Inspection) -> str:
    """The table of ``-d`` with what each pod was seen to use, GPU by GPU, and how it is isolated."""

    def more(share: PodShare) -> list[str]:
        used = share.used
        mib = "-" if used is None else ",".join(str(used.get(gpu, 0)) for gpu in sorted({*share.gpus, *used}))
        return [mib or "-", share.level or "-"]

    return details(found, ("Used(MiB)", "Isolation"), more)


def asked(found: Inspection) -> Sizes:
    """Of every pod that is there now."""
    sizes: Sizes = Counter()
    for node in found.nodes:
        sizes.update(max(share.gpus.values(), default=share.pending) for share in node.shares)
    return sizes


def stranded(free: int, sizes: Sizes) -> int:
    """Of ``free`` units of one GPU, those that the pods of this cluster could not use: free units times the share of pods
    that ask for more (the fragmentation of FGD, ATC'23, section 3.2, of one GPU)."""
    return round(free * sum(count for size, count in sizes.items() if size > free) / max(1, sizes.total()))


def plugin(heartbeat: str, now_s: float) -> str:
    """``12s ago``; what is wrong, in capitals; ``-`` without a heartbeat, as with gpushare's own plugin."""
    if not heartbeat:
        return "-"
    found = read(heartbeat)
    if found is None:
        return "UNREADABLE"
    if not found.registered:
        return "UNREGISTERED"
    age_s = age(found.at, now_s)
    return f"{max(0, age_s):.0f}s ago" if age_s <= SILENT_BEATS * found.every_s else f"SILENT since {found.at}"


def age(at: str, now_s: float) -> float:
    """Seconds since a time in RFC 3339; endless when it is none."""
    try:
        return now_s - seconds(at)
    except ValueError:
        return float("inf")
