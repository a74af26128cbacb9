"""``p2p_drain``, by the name under which ranks of images made before import it in the middle of their first cut."""

from . import p2p_drain
from . import page as pg


def settle(groups, anybody, wanted):
    """As it was: the ticket is read from the page."""
    from .here import here

    return p2p_drain.settle(groups, here.words[pg.TICKET], anybody, wanted)
