"""Which kind of device a job had better have: the fastest first, where its user named no order."""

from __future__ import annotations

from msgspec.structs import replace

from ..model.node import bits
from ..model.view import View
from ..plan.request import Request


def fastest_first(view: View, row: int, request: Request) -> Request:
    """The request with one group of kinds for each rate, the fastest first.

    As it is where kinds are alike, or where its user named some.
    """
    rates = view.rates
    if rates is None or not rates.by_kind or len(request.groups) != 1 or request.groups[0].bit_count() < 2:
        return request
    job, kinds = view.rated(row), view.layout.kinds
    groups: dict[int, int] = {}
    for kind in bits(request.groups[0]):
        rate = rates.rate(job, kinds[kind], request.count)
        groups[rate] = groups.get(rate, 0) | 1 << kind
    return replace(request, groups=tuple(groups[rate] for rate in sorted(groups, reverse=True)))
