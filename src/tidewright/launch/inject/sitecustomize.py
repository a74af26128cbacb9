"""Runs in every Python that a rank starts, because its directory comes first on PYTHONPATH. Chains to the next one."""

import atexit
import os
import sys


def _chain():
    """Run the ``sitecustomize`` that would have been found without this one."""
    import importlib.machinery

    mine = os.path.dirname(os.path.abspath(__file__))
    others = [place for place in sys.path if os.path.abspath(place or os.getcwd()) != mine]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    kept = sys.modules.get("sitecustomize")
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["sitecustomize"] = kept
        raise


def _end():
    """The last of all that is done at exit, because it was registered first: what others do there may need groups."""
    found = sys.modules.get("_tidewright.process_control")
    if found is not None:
        found.control.end()


if os.environ.get("TIDE_BOX"):
    from _tidewright import hooks

    hooks.install()
    atexit.register(_end)
elif os.environ.get("TIDE_GPU_MEMORY_FRACTION"):
    from _tidewright import hooks

    hooks.install_limits()

_chain()
