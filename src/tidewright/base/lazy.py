"""Names of a package that are loaded at first use (PEP 562): what brings numpy or a server costs only those who ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def lazy_attribute(package: str, modules: Mapping[str, str], name: str) -> Any:
    """What ``__getattr__`` of ``package`` returns: ``modules`` says which module below it defines each name. Raises
    AttributeError for other names."""
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(f"{package}.{modules[name]}"), name)
