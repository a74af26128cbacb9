"""Answers to calls about services: each is answered once, and given the same answer when it is repeated."""

from __future__ import annotations

from ...model.cause import Code
from ..book import Book
from ..commands import Reply
from ..requests.answers import answer, answered
from .records import ServiceRecord


def known(book: Book, name: str, op_id: str) -> ServiceRecord | None:
    """The service of a call that is new; otherwise the answer has been given."""
    if answered(book, op_id):
        return None
    record = book.services.records.get(name)
    if record is None or record.deleted:
        answer(book, Reply(op_id, error=Code.NO_SUCH_SERVICE(name), kind="notfound"))
        return None
    return record
