"""What pods of a node really use, as the device plugin last saw it: the node annotation ``tidewright.io/gpu-use``. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...base.errors import UsageError
from ...devices.excess import Place
from . import names
from .metadata import annotations_of
from .quantity import whole

MOST_PODS = 1000
"""An object's annotations have 256 KiB together; a pod takes about 50 bytes."""


def written(used: Mapping[Place, int]) -> str:
    """``{"<pod uid>": {"<GPU index>": MiB}}``, of the pods that use most when there are too many."""
    by_pod: dict[str, dict[str, int]] = {}
    for (uid, gpu), mib in sorted(used.items()):
        by_pod.setdefault(uid, {})[str(gpu)] = mib
    most = sorted(by_pod.items(), key=lambda item: -sum(item[1].values()))[:MOST_PODS]
    return json.dumps(dict(sorted(most)), separators=(",", ":"))


def used_on(node: Mapping[str, Any]) -> dict[str, dict[int, int]] | None:
    """MiB by pod uid and GPU; None where nothing is known. What cannot be read counts as not known."""
    text = annotations_of(node).get(names.USE)
    if text is None:
        return None
    try:
        return {
            str(uid): {whole(gpu, "GPU index"): whole(mib, "MiB") for gpu, mib in gpus.items()}
            for uid, gpus in json.loads(text).items()
        }
    except (UsageError, ValueError, TypeError, AttributeError, RecursionError):
        return None
