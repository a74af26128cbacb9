"""Who has how much of which GPU, as gpushare's ``/inspect`` tells it. Pure."""

from __future__ import annotations

from typing import Any

from ..allocation.pool import Pool


def shares(pool: Pool, node: str = "") -> dict[str, Any]:
    """All nodes that share GPUs by name, or one; empty ``nodes`` when it shares none."""
    chosen = [node] if node else sorted(pool.inventories)
    return {
        "nodes": [_node(pool, name) for name in chosen if name in pool.inventories and pool.inventories[name].cards]
    }


def _node(pool: Pool, node: str) -> dict[str, Any]:
    inventory, pods = pool.inventories[node], pool.on(node)
    devs = [
        {
            "id": card.index,
            "totalGPU": card.units,
            "usedGPU": sum(held.units.get(card.index, 0) for held in pods),
            "pods": [
                {"name": held.name, "namespace": held.namespace, "usedGPU": held.units[card.index]}
                for held in pods
                if card.index in held.units
            ],
        }
        for card in inventory.cards
    ]
    return {
        "name": node,
        "totalGPU": sum(card.units for card in inventory.cards),
        "usedGPU": sum(dev["usedGPU"] for dev in devs),
        "devs": devs,
    }
