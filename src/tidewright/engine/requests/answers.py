"""Answers to users: sent, and remembered for the same call again."""

from __future__ import annotations

from ...model.cause import Code
from ...model.job import State
from ..book import Book, forget_oldest
from ..commands import Reply


def answer(book: Book, reply: Reply) -> None:
    """Send an answer and remember it, so that the same call again gets the same answer."""
    if not reply.op_id:
        return
    book.out.append(reply)
    book.answers[reply.op_id] = reply
    forget_oldest(book.answers, book.settings.remembered_answers)


def answered(book: Book, op_id: str) -> bool:
    """Whether the call was answered before; it gets the same answer again."""
    earlier = book.answers.get(op_id) if op_id else None
    if earlier is not None:
        book.out.append(earlier)
    return earlier is not None


def known(book: Book, op_id: str, job: int) -> bool:
    """Whether to go on: the job is in the book and the call is new. Otherwise the answer has been given."""
    if answered(book, op_id):
        return False
    if job in book.specs:
        return True
    outcome = book.outcomes.get(job)
    if outcome is None:
        answer(book, Reply(op_id, job, Code.NO_SUCH_JOB(job), "notfound"))
    else:
        answer(book, Reply(op_id, job, Code.ENDED_ALREADY(job, State(outcome).name), "conflict"))
    return False
