"""Answers to users: sent, and remembered for the same call again."""

from __future__ import annotations

from ..book import Book, forget_oldest
from ..commands import Reply


def answer(book: Book, reply: Reply) -> None:
    """Send an answer and remember it, so that the same call again gets the same answer."""
    if not reply.op_id:
        return
    book.out.append(reply)
    book.answers[reply.op_id] = reply
    forget_oldest(book.answers, book.settings.remembered_answers)
