"""Programs that a rank starts get a random address layout again.

A rank itself has none (personality(2), ADDR_NO_RANDOMIZE), so that replicas share pages. A child that is started anew with
the same Python, as torchrun and spawned workers are, would then map many files at the addresses where its parent has them,
shifted by a page here and there; and CRIU (up to 4.2.1, check_cow_vmas) takes a mapping of the same file at the same address
for one inherited by fork, whatever its offset, and restores the parent's into the child.
"""

NO_RANDOMIZE = 0x0040000
"""linux/personality.h"""


def randomize():
    """For whatever this process executes from now on; what runs keeps its layout."""
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        now = libc.personality(0xFFFFFFFF)
        if now >= 0 and now & NO_RANDOMIZE:
            libc.personality(now & ~NO_RANDOMIZE)
    except (ImportError, OSError, AttributeError):  # the agent looks before each image whether such mappings exist
        return
