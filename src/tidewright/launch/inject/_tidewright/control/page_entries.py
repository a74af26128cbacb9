"""What a process has written into its control page: its place in the world, its streams of operations, and at which of these
a thread is stopped. Known here as well, so that it can be written again. Standard library only."""

from __future__ import annotations

from .. import page as pg


class PageEntries:
    """``stopped``: pairs of an entry and the number of an operation that waits to be issued."""

    def __init__(self):
        self.stopped = set()
        self._place = (0, 0, 0)
        self._streams = []

    def join(self, page, world, rank, size):
        """The process is a member of a world from now on, and has no streams yet."""
        words = page.words
        if words[pg.WORLD]:
            words[pg.LEFT_WORLD], words[pg.LEFT_RANK] = words[pg.WORLD], words[pg.RANK]
        words[pg.WORLD] = 0
        page.clear()
        self._streams = []
        words[pg.RANK], words[pg.WORLD_SIZE], words[pg.WORLD] = self._place = (rank, size, world)

    def add(self, page, owner, ident, kind, peer, members):
        """A new entry; the index of its first word. ``owner.number`` is what it counts."""
        if page.words[pg.COUNT] != len(self._streams):  # of another page, which was not written again yet
            self.rewrite(page)
        at = page.add(ident, kind, peer, members)
        self._streams.append((at, ident, kind, peer, members, owner))
        return at

    def remove(self, page, at):
        """The group of an entry is destroyed; the entry stays, with a mark."""
        page.words[at + pg.KIND] |= pg.GONE
        self._streams = [
            (place, ident, kind | pg.GONE if place == at else kind, *rest)
            for place, ident, kind, *rest in self._streams
        ]

    def rewrite(self, page):
        """The page says what we know: the file under it may be another one, or have gone on without us."""
        words = page.words
        words[pg.MAGIC_AT] = pg.MAGIC
        words[pg.RANK], words[pg.WORLD_SIZE], words[pg.WORLD] = self._place
        page.clear()
        for at, ident, kind, peer, members, owner in self._streams:
            assert page.add(ident, kind, peer, members) == at
            words[at + pg.ISSUED] = owner.number
        for at, number in self.stopped:
            words[at + pg.WANT], words[at + pg.ISSUED] = number, number - 1

    def stopped_before_the_cut(self, words):
        """Whether a thread was stopped at an operation that the cut includes, and has not woken yet."""
        return any(number <= words[at + pg.CUT] for at, number in self.stopped)
