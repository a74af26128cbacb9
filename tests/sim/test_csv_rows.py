"""Tables in CSV: no row is lost to a quote, a cell too many or a column named twice."""

from __future__ import annotations

import io

import pytest

from tidewright.base.errors import UsageError
from tidewright.sim.stream import ROW_LINES
from tidewright.sim.trace import Trace
from tidewright.sim.trace_csv import parse

COMMANDS = "submit,duration,devices,command"
ROWS = [f"{at},10,1,python train.py" for at in range(200)]


def read(*lines: str) -> Trace:
    return parse(io.StringIO("\n".join([*lines, ""]), newline=""), "t.csv", "t")


def refusal(*lines: str) -> UsageError:
    """How a table of these lines is refused."""
    with pytest.raises(UsageError) as caught:
        read(*lines)
    assert caught.value.remedy
    return caught.value


OPEN = '0,10,1,"python train.py'


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        ([COMMANDS, OPEN, *ROWS], 2),
        ([COMMANDS, ROWS[0], OPEN, *ROWS[:5]], 3),
        ([COMMANDS, ROWS[0], OPEN], 3),
        ([COMMANDS, *ROWS, OPEN, *ROWS[:ROW_LINES], '1,10,1,python"'], 202),
        ([COMMANDS, ROWS[0], OPEN, ROWS[1], '1,10,1,"python x.py"', ROWS[2]], 3),
        ([COMMANDS, '0,10,1,"two\nlines","an opening', *ROWS[:5]], 3),
        (['submit,duration,devices,"command', *ROWS[:5]], 1),
        ([COMMANDS, '0,10,1,"python" train.py'], 2),
    ],
)
def test_a_quote_that_is_not_closed_is_named_by_the_line_at_which_it_opens(lines: list[str], at: int) -> None:
    error = refusal(*lines)
    assert error.message.startswith(f"t.csv:{at}: a quote opens here")
    assert "close the quote" in error.remedy


def test_cells_may_span_lines_and_hold_quotes() -> None:
    script = "\n".join(["line"] * (ROW_LINES - 1))
    trace = read(
        COMMANDS + ",name",
        '0,10,1,"echo ""a,b""\nexit",a',
        f'1,10,1,"{script}\n",b',
        '2,10,1,say "hi",c',
        "",
        "3,10,1,,d",
    )
    assert trace.names == ("a", "b", "c", "d")


def test_the_lines_of_mistakes_count_those_inside_quotes() -> None:
    assert "t.csv:4: duration: 'soon'" in refusal(COMMANDS, '0,10,1,"a\nb"', "1,soon,1,").message.replace(
        "not a duration: ", ""
    )


def test_a_row_has_no_more_cells_than_the_header() -> None:
    message = refusal("submit,duration,devices", "0,3,600,4", "1,3,1,, ", "2,soon,1").message
    assert message.splitlines()[0] == "t.csv:2: 4 cells, but the header names 3 columns"
    assert "t.csv:4: duration" in message and "t.csv:3" not in message
    assert len(read("submit,duration,devices", "0,3,6,, ", "1,3,1,")) == 2


def test_a_column_that_is_read_is_there_once() -> None:
    assert (
        refusal("submit,duration,Duration,devices", "0,3,600,4").message == "t.csv:1: two columns are called duration"
    )
    assert len(read("submit,duration,note,devices,note", "0,3,a,1,b")) == 1
