"""A model from its source: ``module:function`` or ``/path/file.py:function``, and weights from a file.

The code is the client's, and runs with the rights of the user who started the runtime: only that user's clients are let in.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...base.errors import UsageError
from ..transport.messages import ModelSource

MADE_FROM_FILE = "tidewright_model_"
"""Names of modules that were loaded by their paths begin so."""


def find(factory: str, folder: str) -> Callable[..., Any]:
    """The function that ``factory`` names. Raises UsageError where there is none."""
    where, _, name = factory.rpartition(":")
    if not where or not name:
        raise UsageError(f"{factory!r} names no factory", "write module:function or /path/file.py:function")
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)
    module = _from_file(Path(folder, where)) if where.endswith(".py") else importlib.import_module(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{where} has no {name!r}", "name a function or class that it defines")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{factory!r} cannot be called", "name a function or class that makes the model")
    return found  # type: ignore[no-any-return]


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", "give the path of a Python file that this host has")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"{MADE_FROM_FILE}{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make(source: ModelSource, folder: str) -> Any:
    """The model, with its weights loaded. Raises UsageError with a remedy, or what the factory raises."""
    model = find(source.factory, folder)(**source.arguments)
    if source.state:
        _load_state(model, Path(folder, source.state))
    return model


def _load_state(model: Any, path: Path) -> None:
    if not hasattr(model, "load_state_dict"):
        raise UsageError(f"{type(model).__name__} takes no weights", "leave out the file of weights")
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ImportError:
            raise UsageError("safetensors is not installed", "pip install safetensors") from None
        model.load_state_dict(load_file(str(path)))
        return
    import torch

    # weights_only: a pickle of weights may hold nothing that runs.
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
