"""The pods that usually come, learnt from those that came: what fragmentation is judged by (FGD, Weng et al., ATC'23)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...placement.scores.columns import ShareRequest
from ...placement.scores.fgd import FragmentationDescent, typical_of
from ..objects.pod_request import PodRequest

MOST_TYPICAL = 50
"""Each costs time for every node; Alibaba's trace has 35."""
REFRESH = 500
"""New pods after which the typical ones are worked out anew; each time all scores are."""


def request_of(ask: PodRequest) -> ShareRequest:
    """All that matters for where a pod can go."""
    return ShareRequest(ask.units, ask.count, ask.cpu)


@dataclass(slots=True)
class Workload:
    """The requests of pods seen so far, and the typical ones among them."""

    seen: Counter[ShareRequest] = field(default_factory=Counter)
    typical: tuple[tuple[ShareRequest, int], ...] = ()
    edition: int = 0
    score: FragmentationDescent = field(default_factory=FragmentationDescent)
    """By the typical pods of this edition."""
    _since: int = REFRESH

    def add(self, ask: PodRequest) -> None:
        """Once per pod."""
        self.seen[request_of(ask)] += 1
        self._since += 1
        if self._since >= REFRESH or not self.typical:
            self._renew()

    def expect(self, requests: Mapping[ShareRequest, int]) -> None:
        """Said beforehand what will come, and how often."""
        self.seen.update(requests)
        self._renew()

    def _renew(self) -> None:
        self._since = 0
        typical = typical_of(self.seen, most=MOST_TYPICAL)
        if _shares(typical) != _shares(self.typical):
            self.typical, self.edition = typical, self.edition + 1
            self.score = FragmentationDescent.by(typical)


def _shares(typical: tuple[tuple[ShareRequest, int], ...]) -> list[tuple[ShareRequest, float]]:
    total = sum(often for _, often in typical)
    return [(request, often / total) for request, often in typical]
