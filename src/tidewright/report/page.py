"""One self-contained page of HTML: nothing in it points outside."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_STYLE = """
:root { color-scheme: light; --ink: #1c2733; --soft: #5b6b7b; --line: #dde4ea; --ground: #f5f7f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 36px 24px 56px; }
main.wide { max-width: 1360px; }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 2px; }
p { margin: 0 0 12px; color: var(--soft); }
p.warning { color: #8a3b00; font-weight: 600; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px; margin-top: 18px; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 18px; margin-top: 18px; }
.grid section { margin: 0; min-width: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 7px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; font-size: 12.5px; }
.wide table { font-size: 13px; }
.wide th, .wide td { padding: 5px 8px; }
.wide th { font-size: 12px; }
th:first-child, td:first-child, .words th:nth-child(2), .words td:nth-child(2) { text-align: left; }
tr:last-child td { border-bottom: 0; }
tr.first td { border-top: 2px solid var(--line); }
td .dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 8px; }
svg { width: 100%; height: auto; display: block; }
ul { color: var(--soft); margin: 10px 0 0; padding-left: 18px; }
ul.warning { color: #8a3b00; }
code { overflow-wrap: anywhere; }
details { margin-top: 22px; }
summary { cursor: pointer; font-size: 17px; font-weight: 600; }
footer { color: var(--soft); font-size: 13px; margin-top: 22px; }
"""


def page(title: str, heading: str, body: str, footer: str, *, warning: str = "", wide: bool = False) -> str:
    """The whole page. ``title`` is also the line below the heading; ``body`` is HTML, all else text. ``wide``: large tables."""
    note = f'<p class="warning">{escape(warning)}</p>' if warning else ""
    main = '<main class="wide">' if wide else "<main>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{main}'
        f"<h1>{escape(heading)}</h1><p>{escape(title)}</p>{note}{body}"
        f"<footer>{escape(footer)}</footer></main></body></html>\n"
    )


def plot_section(name: str, text: str, svg: str) -> str:
    """A plot with its heading and a line on how to read it."""
    return f"<section><h2>{name}</h2><p>{text}</p>{svg}</section>"


def head_row(columns: Iterable[tuple[str, str]]) -> str:
    """The head of a table: (name, what it means, shown when pointed at)."""
    cells = "".join(f'<th title="{escape(text)}">{escape(name)}</th>' for name, text in columns)
    return f"<thead><tr>{cells}</tr></thead>"


def body_row(label: str, colour: str, cells: Iterable[str], kind: str = "") -> str:
    """A row whose first cell has the dot of ``colour`` that it has in the plots."""
    dot = f'<td><span class="dot" style="background:{colour}"></span>{escape(label)}</td>'
    return f"<tr{kind and f' class={kind!r}'}>{dot}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def table(head: str, rows: Iterable[str], kind: str = "") -> str:
    """A table that scrolls where the window is narrow."""
    return f'<div class="scroll"><table{kind and f" class={kind!r}"}>{head}<tbody>{"".join(rows)}</tbody></table></div>'
