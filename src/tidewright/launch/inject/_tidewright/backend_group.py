"""The process group that does the work: torch's own, with the backends the program asked for, made anew at each build."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from . import agent_endpoint
from .process_control import control
from .sockets import sockets
from .store import TidewrightStore

PATIENCE = datetime.timedelta(minutes=5)
"""Shortest time for which a rank tries to reach the others when groups are built again. Torch's store waits as long."""

Gloo = getattr(c10d, "ProcessGroupGloo", None)
Nccl = getattr(c10d, "ProcessGroupNCCL", None)
KNOWN = frozenset({"gloo", "nccl"})
_TYPES = {"gloo": dist.ProcessGroup.BackendType.GLOO, "nccl": dist.ProcessGroup.BackendType.NCCL}


class BuildStore(TidewrightStore):
    """Where backends find each other. What they wait for depends on nothing but the build itself."""

    depends = False


def make(group, build):
    """A group of torch's own for the ranks of ``group``, and the sockets that came with it.

    Blocks until they are connected, where the backend connects. Raises what torch raises when they are not reached.
    """
    before = sockets()
    found = _make(group, build)
    return found, sockets() - before


def _make(group, build):
    limit = max(group.timeout, PATIENCE)
    store = group.store = BuildStore(f"{group.key}/{build}", limit)
    found = dist.ProcessGroup(store, group.rank(), group.size())
    default = "nccl" if "nccl" in group.devices.values() else "gloo"
    found._set_default_backend(_TYPES[default])
    made = {}
    for device, name in group.devices.items():
        if name not in made:
            made[name] = _BACKENDS[name](group, dist.PrefixStore(device + "/", store), limit)
        found._register_backend(torch.device(device), _TYPES[name], made[name])
    found._set_group_name(group.name_)
    if hasattr(found, "_set_group_desc"):
        found._set_group_desc(group.desc)
    for backend in made.values():
        backend._set_sequence_number_for_group()
    return found


def _gloo(group, store, limit):
    options = Gloo._Options()
    host = agent_endpoint.read().get("host", "")
    device, loop = control.watch_device(
        lambda: Gloo.create_device(hostname=host) if host else Gloo.create_default_device()
    )
    options._devices = [device]
    options._threads = 2  # as torch's own
    options._timeout = limit
    found = Gloo(store, group.rank(), group.size(), options)
    loop.note()
    _name(found.options, group)
    _limit(found, group.timeout)
    return found


def _nccl(group, store, limit):
    options = group.asked if isinstance(group.asked, Nccl.Options) else Nccl.Options()
    options._timeout = group.timeout
    if getattr(options, "split_from", None) is not None:
        options.split_from = None  # of a communicator that is gone
    _name(options, group)
    found = Nccl(store, group.rank(), group.size(), options)
    device = group.bound_device_id
    if device is not None and getattr(found, "supports_splitting", False):
        found.eager_connect_single_device(device)
    return found


_BACKENDS = {"gloo": _gloo, "nccl": _nccl}


def _name(options, group):
    if hasattr(options, "global_ranks_in_group"):
        options.global_ranks_in_group = list(group.ranks)
    if hasattr(options, "group_name"):
        options.group_name = group.name_


def _limit(backend, timeout):
    for name in ("set_timeout", "_set_default_timeout"):
        if hasattr(backend, name):
            getattr(backend, name)(timeout)
            return


def close(found):
    """Make an inner group end where it does not by itself when the last reference goes (NCCL's communicators)."""
    for device in found._device_types:
        backend = found._get_backend(device)
        if Nccl is not None and isinstance(backend, Nccl):
            backend.abort() if hasattr(backend, "abort") else backend.shutdown()
