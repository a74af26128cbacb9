"""Placement scores by name, settings included: ``fgd:cover=0.9``."""

from __future__ import annotations

from collections.abc import Sequence

from ...base.registry import Registry
from ...plan.factories import build
from .columns import ShareRequest
from .protocol import PlacementScore

placements = Registry(
    "placement",
    "tidewright.placements",
    {
        "best-fit": "tidewright.placement.scores.best_fit:BestFit",
        "fgd": "tidewright.placement.scores.fgd:FragmentationDescent",
        "dot-product": "tidewright.placement.scores.dot_product:DotProduct",
        "gpu-packing": "tidewright.placement.scores.gpu_packing:GpuPacking",
        "gpu-clustering": "tidewright.placement.scores.gpu_clustering:GpuClustering",
        "tightest": "tidewright.placement.scores.devices:TightestDevices",
        "spread": "tidewright.placement.scores.devices:EmptiestDevices",
        "random": "tidewright.placement.scores.uniform:UniformDraw",
    },
)
"""Third parties register a factory with keyword settings under the entry point group ``tidewright.placements``."""


def make_score(name: str, workload: Sequence[ShareRequest] = ()) -> PlacementScore:
    """The score called ``name``, which may carry settings: ``name:key=value,key=value``.

    ``workload``: requests as they usually come, for factories with a parameter of that name. Raises UsageError for unknown
    names and settings.
    """
    score: PlacementScore = build(placements, name, {"workload": workload})
    return score
