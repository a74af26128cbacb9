"""Being told when a module has been imported, without importing it: the first finder on ``sys.meta_path``."""

from __future__ import annotations

import importlib.util
import sys

from . import reach


class Finder:
    """Finds as the others do, and has the patch called when the module has been executed. One lookup per import."""

    def __init__(self, patches):
        self._patches = patches
        self._busy = set()

    def find_spec(self, name, path=None, target=None):
        """As importlib.abc.MetaPathFinder."""
        if name not in self._patches or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader, self._patches[name])
        return spec


class Loader:
    """Another loader, and what is to be done when it is through."""

    def __init__(self, loader, patch):
        self._loader, self._patch = loader, patch

    def create_module(self, spec):
        """As importlib.abc.Loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module):
        """As importlib.abc.Loader."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        attempt(self._patch, module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def attempt(patch, module):
    """A change of ours that does not fit this module must not cost the program its import: it costs a level."""
    try:
        patch(module)
    except Exception as error:
        reach.say("freeze", f"{module.__name__} is not as the wrapper knows it: {type(error).__name__}: {error}")


def install(patches):
    """Call ``patches[name](module)`` after each import of such a module. Those that are there are patched at once."""
    sys.meta_path.insert(0, Finder(patches))
    for name, patch in patches.items():
        if name in sys.modules:
            attempt(patch, sys.modules[name])
