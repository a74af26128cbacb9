"""What every program here does at its end: a hash over weights, optimizer state, losses and random state."""

import hashlib
import io
import json
import os
import random

import numpy
import torch


def fingerprint(model, optimizer, losses) -> str:
    """Bitwise, over everything that training leaves behind in this rank."""
    text = hashlib.sha256()
    for state in (model.state_dict(), optimizer.state_dict() if optimizer is not None else {}):
        file = io.BytesIO()
        _write(file, state)
        text.update(file.getvalue())
    text.update(json.dumps([float(loss).hex() for loss in losses]).encode())
    text.update(torch.get_rng_state().numpy().tobytes())
    text.update(repr(random.getstate()).encode() + repr(numpy.random.get_state()).encode())
    return text.hexdigest()


def _write(file, value) -> None:
    if hasattr(value, "to_local"):
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        file.write(
            value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        )
    elif isinstance(value, dict):
        for key in value:
            file.write(str(key).encode())
            _write(file, value[key])
    elif isinstance(value, (list, tuple)):
        for part in value:
            _write(file, part)
    else:
        file.write(repr(value).encode())


def report(model, optimizer, losses) -> None:
    """Leave the hash where the test looks for it."""
    name = os.environ["OUT"] + f".{os.environ['RANK']}"
    with open(name, "w") as file:
        json.dump({"hash": fingerprint(model, optimizer, losses), "steps": len(losses)}, file)
