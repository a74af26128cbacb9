"""Where torch is made to build our groups and stores in the place of its own.

Every change is one name of a torch module replaced by a function that asks whether the call is one we can serve, and
otherwise calls what was there and says to the agent what that costs. Nothing is imported before it is needed.
"""

from __future__ import annotations

import functools
import inspect
import threading

from . import agent_endpoint

_asked = threading.local()
"""``call``: the arguments of the ``_new_process_group_helper`` under way."""


def cuda(module):
    """torch.cuda: its memory is kept to the share that the job asked for."""
    from . import gpu_memory

    gpu_memory.limit(module)


def distributed(module):
    """torch.distributed, when its import is complete."""
    c10d = getattr(module, "distributed_c10d", None)
    if c10d is None or not module.is_available():
        return
    from . import store

    c10d._new_process_group_helper = _helper(c10d)
    for name, change in (("batch_isend_irecv", _batch), ("split_group", _split)):
        if hasattr(c10d, name):
            changed = change(c10d, getattr(c10d, name))
            setattr(c10d, name, changed)
            setattr(module, name, changed)
    rendezvous = module.rendezvous if inspect.ismodule(module.rendezvous) else _module("torch.distributed.rendezvous")
    for place in (module, rendezvous, c10d):
        if hasattr(place, "TCPStore"):
            place.TCPStore = store.Listening
    rendezvous._create_c10d_store = _meeting
    rendezvous.FileStore = _meeting_in_file


def _module(name):
    import sys

    return sys.modules[name]


def _meeting(hostname, port, rank, world_size, timeout, *_, **__):
    """env:// and tcp://, where rank 0 would have listened."""
    from . import store, world

    return store.TidewrightStore(world.named("tcp", f"{hostname}:{port}"), timeout)


def _meeting_in_file(path, *_):
    """file://; the file is not made."""
    from . import store, world

    return store.TidewrightStore(world.named("file", path))


def _helper(c10d):
    original = c10d._new_process_group_helper
    signature = inspect.signature(original)
    known = frozenset({"gloo", "nccl"})

    @functools.wraps(original)
    def helper(*args, **kwargs):
        call = signature.bind(*args, **kwargs).arguments
        found = c10d.BackendConfig(c10d.Backend(call["backend"])).get_device_backend_map()
        devices = {device: str(name) for device, name in found.items()}
        others = sorted(set(devices.values()) - known)
        if getattr(c10d, "_use_torchcomms_enabled", bool)():
            others = ["torchcomms"]
        if others:
            if others != ["fake"]:
                agent_endpoint.report_level("cooperative", f"a process group over {', '.join(others)}")
            return original(*args, **kwargs)
        _asked.call, _asked.devices = call, devices
        return _with_ours(c10d, original, args, kwargs)

    return helper


def _with_ours(c10d, function, args, kwargs):
    """torch does all the bookkeeping, and instantiates our class where it would have one of its backends."""
    maker = _maker()
    kept = {name: getattr(c10d, name) for name in ("ProcessGroupGloo", "ProcessGroupNCCL") if hasattr(c10d, name)}
    for name in kept:
        setattr(c10d, name, maker)
    if "ProcessGroupNCCL" in kept:
        maker.Options = kept["ProcessGroupNCCL"].Options
    try:
        return function(*args, **kwargs)
    finally:
        for name, value in kept.items():
            setattr(c10d, name, value)


def _import_early():
    """What DDP and the optimizers import anyway, while ranks still have equal heaps: then their images share it."""
    import contextlib
    import importlib

    with contextlib.suppress(Exception):  # a torch without it, or one that lacks what it needs: its own matter
        importlib.import_module("torch._dynamo")


@functools.cache
def _maker():
    _import_early()
    from . import functional, world
    from .group import Group

    functional.install()

    class Wrapped(Group):
        """What torch instantiates, with a backend's arguments; the group's own are those of the helper."""

        current = None

        def __init__(self, *_, **__):
            call = _asked.call
            size, rank = call["group_size"], call["group_rank"]
            members = list(call["global_ranks_in_group"])
            if not members:
                Wrapped.current = world.TorchWorld(_name_of(call["store"], rank), rank, size)
            super().__init__(
                Wrapped.current,
                rank,
                members or list(range(size)),
                str(call["group_name"]),
                _asked.devices,
                call["timeout"],
                call.get("backend_options") or call.get("pg_options"),
                call.get("group_desc") or "undefined",
                call.get("device_id"),
            )

    return Wrapped


def _name_of(store, rank):
    """The world's name. It is the store's where we made one for this meeting; elsewhere the ranks agree on one."""
    from . import world
    from .store import TidewrightStore

    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    ours = isinstance(store, TidewrightStore)
    if ours and store.name.startswith("w/"):
        return store.name
    if not ours:
        agent_endpoint.report_level("freeze", f"a store of the program's own: {type(store).__name__}")
    return world.agreed(store, rank)


def _batch(c10d, original):
    @functools.wraps(original)
    def batch_isend_irecv(p2p_op_list):
        from .group import Group

        c10d._check_p2p_op_list(p2p_op_list)
        group = p2p_op_list[0].group or c10d._get_default_group()
        device = p2p_op_list[0].tensor.device
        if not isinstance(group, Group) or group.devices.get(device.type) != "nccl":
            return original(p2p_op_list)
        return [group.channels.batch(device, [_message(c10d, group, found) for found in p2p_op_list])]

    return batch_isend_irecv


def _message(c10d, group, found):
    from . import page as pg

    peer = found.group_peer if hasattr(found, "group_peer") else c10d.get_group_rank(group, found.peer)
    return (pg.SEND if found.op is c10d.isend else pg.RECV), found.tensor, peer, found.tag


def _split(c10d, original):
    """Communicators cannot be split from one that will be dropped; the parts are groups of their own."""

    @functools.wraps(original)
    def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, **kwargs):
        from .group import Group

        parent = parent_pg or c10d._get_default_group()
        if not isinstance(parent, Group) or not split_ranks:
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **kwargs)
        mine = [part for part in split_ranks if parent.rank() in part]
        if not mine:
            return None
        return c10d.new_group(
            [parent.ranks[rank] for rank in mine[0]], timeout, kwargs.get("backend"), pg_options,
            use_local_synchronization=True, group_desc=group_desc,
        )  # fmt: skip

    return split_group


def optimizer(module):
    """torch.optim.optimizer: count steps, and stand still where one begins."""
    from . import steps
    from .process_control import control

    steps.watch(module)
    original = module.Optimizer.zero_grad

    @functools.wraps(original)
    def zero_grad(self, *args, **kwargs):
        original(self, *args, **kwargs)
        control.between_steps()

    module.Optimizer.zero_grad = zero_grad


def dataloader(module):
    """torch.utils.data.dataloader: count samples."""
    from . import steps

    steps.watch_batches(module)


def dynamo(module):
    """torch._dynamo.variables.distributed: a compiled program treats our groups as torch's own."""
    variable = getattr(module, "ProcessGroupVariable", None)
    if variable is None:
        return
    original = variable.is_process_group

    def is_process_group(value):
        if original(value):
            return True
        import sys

        found = sys.modules.get("_tidewright.group")
        return found is not None and isinstance(value, found.Group)

    variable.is_process_group = staticmethod(is_process_group)


def trace_rules(module):
    """torch._dynamo.trace_rules: frames of ours are not compiled; a graph ends there, as at torch's own collectives."""
    module.add(__package__)


def rpc(module):
    """torch.distributed.rpc: its agents hold connections of their own."""
    _telling(module, "init_rpc", "torch.distributed.rpc")


def symmetric_memory(module):
    """torch.distributed._symmetric_memory: memory that is mapped by other ranks."""
    for name in ("rendezvous", "get_symm_mem_workspace"):
        _telling(module, name, "symmetric memory")


def _telling(module, name, what):
    original = getattr(module, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def telling(*args, **kwargs):
        agent_endpoint.report_level("cooperative", what)
        return original(*args, **kwargs)

    setattr(module, name, telling)
