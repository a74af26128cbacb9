"""Forecasts of first starts held against what became of them (``engine.calibration``).

A job is counted once at most. One that ends before it starts is not, nor one that its user holds, moves or scales: what was
forecast was another job's start. The forecast itself is made elsewhere and comes as an event.
"""

from __future__ import annotations

from ..model.job_record import JobRecord, StartForecast
from . import events as ev
from .book import Book

_SPENT = StartForecast(0, 0, 0, counts=False)


def forecast_made(book: Book, event: ev.ForecastMade) -> None:
    """A forecast of a waiting job. It may have started since the question was asked; then it is counted at once."""
    record = book.jobs.get(event.job)
    if record is None or record.start_forecast is not None:
        return
    record.start_forecast = StartForecast(event.low, event.middle, event.high)
    started = book.table.first_start.item(book.table.row[event.job])
    if started >= event.asked:
        _count(book, record, started)
    elif started >= 0:
        record.start_forecast = _SPENT


def settle(book: Book, record: JobRecord) -> None:
    """The job runs for the first time since a forecast was made."""
    _count(book, record, book.now)


def withdraw(book: Book, job: int) -> None:
    """Its user changes a job that has not started: no forecast of it is counted, neither one made before nor one to come."""
    if book.table.first_start.item(book.table.row[job]) < 0:
        book.jobs[job].start_forecast = _SPENT


def _count(book: Book, record: JobRecord, started: int) -> None:
    said = record.start_forecast
    if said is not None and said.counts:
        book.start_calibration.note(said.low, said.middle, said.high, started)
        record.start_forecast = _SPENT
