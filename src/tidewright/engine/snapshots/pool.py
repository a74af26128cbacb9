"""What snapshots of every format hold of the pool and the book as a whole."""

from __future__ import annotations

from msgspec import Struct, field

from ...estimate.history import RunTimeHistory
from ...estimate.pauses import PauseHistory
from ...estimate.tolerance import Tolerances
from ...model.array_record import ArrayRecord
from ...model.cause import Cause
from ...model.node import NodeSpec
from ...model.rate import NOTHING_LEARNT, LearntRates
from ...plan.plan import Wake
from ...plan.reasons import Blocked
from ..calibration import StartCalibration
from ..commands import Reply
from ..services.records import ServiceRecord
from ..settings import EngineSettings
from ..wall_time import Offsets


class PoolSnapshot(Struct, kw_only=True):
    """Fields of the book by their names, in types MessagePack knows; one that an older snapshot lacks needs a default."""

    format: int
    settings: EngineSettings
    layout: tuple[NodeSpec, ...]
    columns: dict[str, bytes]
    ids: list[int]
    """Jobs in the order of the table's rows."""
    now: int
    revision: int
    steps: int
    next_job: int
    nodes: dict[str, int]
    incarnations: dict[str, str]
    node_down: dict[int, Cause | str]
    drained: dict[int, Cause | str]
    dead: dict[int, bool] = {}
    arrays: dict[str, ArrayRecord] = {}
    outcomes: dict[int, int]
    array_outcomes: dict[int, int] = {}
    answers: dict[str, Reply]
    teams: dict[str, int]
    timers: list[tuple[int, int, str, int, int]]
    timer_seq: int
    counts: list[int]
    elastic_jobs: int
    wake: Wake
    wake_due: int = 0
    arrived: bool
    first_arrival: int = 0
    freed: bool
    forced: bool
    planning: bool = field(name="thinking")
    refused: bool
    blocked: dict[int, Blocked]
    reservation_order: dict[int, dict[int, bool]] = field(name="promise_order")
    wall_offsets: Offsets = ()
    policy_state: tuple[str, bytes] = ("", b"")
    run_times: RunTimeHistory = field(default_factory=RunTimeHistory)
    pauses: PauseHistory = field(default_factory=PauseHistory)
    tolerances: Tolerances = {}
    start_calibration: StartCalibration = field(default_factory=StartCalibration)
    learnt_rates: LearntRates = NOTHING_LEARNT
    service_records: dict[str, ServiceRecord] = {}


_NOT_OF_THE_BOOK = ("format", "settings", "layout", "columns", "ids", "service_records")
OF_THE_BOOK = tuple(name for name in PoolSnapshot.__struct_fields__ if name not in _NOT_OF_THE_BOOK)
"""Those that are fields of the book as they are."""

STORED_COLUMNS = {"reserved": "promised", "pinned_node": "home", "restore_kind": "origin"}
"""Columns of the job table that snapshots hold under the names that they once had."""


def stored_column(name: str) -> str:
    """The name in snapshots of a column of the job table."""
    return STORED_COLUMNS.get(name, name)
