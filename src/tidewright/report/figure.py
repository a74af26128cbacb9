"""Plots as SVG or PNG, all in one look. Equal input gives equal text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, Literal

from ..base.errors import UsageError

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10,
    "font.sans-serif": ["system-ui", "Segoe UI", "Helvetica", "Arial", "DejaVu Sans"],
    "text.color": "#1c2733", "text.parse_math": False, "axes.labelcolor": "#5b6b7b", "axes.edgecolor": "#c3ccd4",
    "xtick.color": "#5b6b7b", "ytick.color": "#5b6b7b", "axes.grid": True, "grid.color": "#e7ecf0",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "legend.frameon": False,
}  # fmt: skip


def require_matplotlib() -> None:
    """Raise UsageError naming the extra to install when matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UsageError("plots need matplotlib, which is not installed", "pip install 'tidewright[report]'") from error


def draw(
    salt: str,
    paint: Callable[[Any], None],
    size: tuple[float, float],
    form: Literal["svg", "png"] = "svg",
    ground: str = "none",
) -> bytes:
    """The file of what ``paint`` draws on matplotlib axes; ``size`` in inches. ``salt`` makes the ids of one SVG different from
    those of others in a page. Raises UsageError when matplotlib is not installed."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=size, layout="constrained", facecolor=ground)
        axes = figure.subplots()
        axes.set_facecolor("none")
        paint(axes)
        sheet = io.BytesIO()
        figure.savefig(sheet, format=form, metadata={"Date": None} if form == "svg" else {}, dpi=110)
    return sheet.getvalue()


def inline_svg(salt: str, paint: Callable[[Any], None], size: tuple[float, float] = (6.4, 3.7)) -> str:
    """The same as an ``<svg>`` element, without metadata and name spaces (HTML needs neither)."""
    text = draw(salt, paint, size).decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).strip()
