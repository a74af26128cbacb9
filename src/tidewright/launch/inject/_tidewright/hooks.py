"""Calls a patch once a module has been imported, without importing it: the first finder on ``sys.meta_path``.

Every Python that a rank starts comes here, most of them without torch; so nothing is imported before it is needed.
"""

import sys

PATCHES = {
    "torch.cuda": "cuda",
    "torch.distributed": "distributed",
    "torch.optim.optimizer": "optimizer",
    "torch.utils.data.dataloader": "dataloader",
    "torch._dynamo.variables.distributed": "dynamo",
    "torch._dynamo.trace_rules": "trace_rules",
    "torch.distributed.rpc": "rpc",
    "torch.distributed._symmetric_memory": "symmetric_memory",
}
"""Modules, and which function of ``patches`` is called with each when its import is complete."""

STARTS_PROGRAMS = "_posixsubprocess"
"""What subprocess and multiprocessing start programs with: a process that imports it may do so."""


def randomize():
    """See ``layout``, which is not loaded by a Python that starts nothing."""
    from . import layout

    layout.randomize()


class Finder:
    """Finds as the others do, and has the patch called when the module has been executed. One lookup per import.

    ``patches``: those of ``PATCHES`` that are wanted. ``images``: the program may be put into an image.
    """

    def __init__(self, patches=PATCHES, images=True):
        self._busy, self._patches, self._images = set(), patches, images

    def find_spec(self, name, path=None, target=None):
        """As importlib.abc.MetaPathFinder."""
        if name == STARTS_PROGRAMS and self._images:
            randomize()
        if name not in self._patches or name in self._busy:
            return None
        import importlib.util

        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)
        return spec


class Loader:
    """Another loader, and the patch when it is through."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        """As importlib.abc.Loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module):
        """As importlib.abc.Loader."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        attempt(module)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def attempt(module):
    """A change of ours that does not fit this module must not cost the program its import: it costs a level."""
    from . import agent_endpoint, patches

    try:
        getattr(patches, PATCHES[module.__name__])(module)
    except Exception as error:
        agent_endpoint.report_level(
            "freeze", f"{module.__name__} is not as the wrapper knows it: {type(error).__name__}: {error}"
        )


def install():
    """Have each module patched after its import. Those that are there are patched at once."""
    sys.meta_path.insert(0, Finder())
    if STARTS_PROGRAMS in sys.modules:
        randomize()
    for name in PATCHES:
        if name in sys.modules:
            attempt(sys.modules[name])


def install_limits():
    """Only what keeps a process to its share, for a program that is never put into an image."""
    sys.meta_path.insert(0, Finder({"torch.cuda": "cuda"}, images=False))
