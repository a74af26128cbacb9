"""A run in one line: a SHA-256 over every step's loss, the final weights and optimizer state, and the random generators.

Two runs with equal digests went through the same numbers, bit for bit. Torch and numpy are looked at only if the
program itself has imported them.
"""

import hashlib
import os
import random
import struct
import sys


class Digest:
    def __init__(self, rank=None):
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.steps = 0
        self._hash = hashlib.sha256()

    def step(self, loss):
        """Print and keep the loss of one more step."""
        self.steps += 1
        value = float(loss)
        self.add(value)
        say(f"step {self.steps} loss {value.hex()} rank {self.rank}")

    def finish(self, *parts):
        """Print the digest. ``parts``: anything made of state dicts, tensors, arrays and plain values."""
        self.add(parts)
        self.add(random_states())
        say(f"sha256 {self._hash.hexdigest()} rank {self.rank}")

    def add(self, value):
        """Hash a value with its type and shape, so that different structures cannot look alike."""
        if isinstance(value, dict):
            self._open("dict", len(value))
            for key, item in value.items():
                self.add(key)
                self.add(item)
        elif isinstance(value, (list, tuple)):
            self._open("list", len(value))
            for item in value:
                self.add(item)
        elif isinstance(value, float):
            self._hash.update(b"f" + struct.pack("<d", value))
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            self._array(value)
        elif value is None or isinstance(value, (bool, int, str, bytes)):
            text = repr(value).encode()
            self._open(type(value).__name__, len(text))
            self._hash.update(text)
        else:
            raise TypeError(f"no digest of a {type(value).__name__}")

    def _open(self, kind, size):
        self._hash.update(f"{kind} {size};".encode())

    def _array(self, value):
        self._open(f"{value.dtype} {tuple(value.shape)}", 0)
        if hasattr(value, "to_local"):  # a DTensor: this rank's part
            value = value.to_local()
        if hasattr(value, "detach"):
            torch = sys.modules["torch"]
            value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        self._hash.update(value.tobytes())


def say(line):
    """Write a line at once and in one piece, so that several ranks may share an output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def seed_all(seed):
    """Seed every generator that the program has imported."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def random_states():
    """The state of every generator that the program can have drawn from."""
    version, internal, gauss = random.getstate()
    states = [version, hashlib.sha256(repr(internal).encode()).digest(), gauss]
    if numpy := sys.modules.get("numpy"):
        states += list(numpy.random.get_state(legacy=True))
    if torch := sys.modules.get("torch"):
        states.append(torch.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states.append(torch.cuda.get_rng_state())
    return states
