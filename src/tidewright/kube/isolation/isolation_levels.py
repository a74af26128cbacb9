"""The levels of isolation below MIG, each with its source. See isolation."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...base.errors import WorldError
from ...devices.mps import answers
from ..node.cdi import Edits, Mount
from ..node.cgroups import Cgroups
from ..node.gpus import Gpus
from ..objects.log import Log
from .ladder import ALL_SMS, IsolationLadder, IsolationLevel, Tenant

MPS_INSIDE = "/run/tidewright/mps"
HAMI_INSIDE = "/usr/local/vgpu"


@dataclass(frozen=True, slots=True)
class IsolationSettings:
    """``chosen``: one of isolation.CHOICES. Where on the node: ``cgroups``; ``mps``, an MPS control daemon's folder, and
    ``mps_shm``, what it has as /dev/shm; ``hami``, HAMi-core's library."""

    chosen: str = "auto"
    cgroups: Path = Path("/sys/fs/cgroup")
    mps: Path = Path("/run/tidewright/mps")
    mps_shm: Path | None = None
    hami: Path = Path("/usr/local/vgpu")


def ladder(gpus: Gpus, settings: IsolationSettings, log: Log) -> IsolationLadder:
    """The ladder of a node. Raises UsageError for a choice that does not exist."""
    levels: list[IsolationLevel] = [
        DriverLimits(gpus, settings.cgroups), Mps(settings.mps, settings.mps_shm), Hami(settings.hami), Cooperative(),
    ]  # fmt: skip
    return IsolationLadder(gpus.found(), levels, settings.chosen, log)


@dataclass(slots=True)
class DriverLimits:
    """L4: the driver refuses memory beyond a limit on the pod's cgroup, all device memory counted.

    Source: NVIDIA MPS documentation, "MPS v3 Memory Partitioning" (driver 615, cgroup v2, not for MIG); NVML
    nvmlDeviceSetMemoryLimits_v1. The pod's cgroup is there before its first container, so no limit comes late; it is
    set anew at every look, and goes with the cgroup.
    """

    gpus: Gpus
    root: Path
    name: str = "driver"
    level: str = "L4 driver limits"
    computes: bool = False
    _found: dict[str, Path] = field(default_factory=dict)

    def why_not(self) -> str:
        if not (self.root / "cgroup.controllers").exists():
            return f"no cgroup v2 at {self.root}"
        if not Cgroups(self.root).visible():
            return f"no cgroups of the kubelet below {self.root}: mount the node's there"
        return self.gpus.why_no_limits(self.root)

    def edits(self, tenant: Tenant) -> Edits:
        """None: the limit is the pod's."""
        return Edits()

    def hold(self, uid: str, mib: Mapping[int, int]) -> None:
        """Every GPU is tried: one that is lost must not leave the others without a limit."""
        folder, failed = self._folder(uid), []
        for gpu, count in mib.items():
            try:
                if self.gpus.limit_of(gpu, folder) != count:
                    self.gpus.limit(gpu, folder, count)
            except WorldError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def keep_only(self, uids: Iterable[str]) -> None:
        """Limits go with their cgroups."""
        here = frozenset(uids)
        self._found = {uid: path for uid, path in self._found.items() if uid in here}

    def _folder(self, uid: str) -> Path:
        """The pod's, written by the kubelet's cgroupfs or systemd driver, at any quality of service. Raises WorldError."""
        found = self._found.get(uid)
        if found is None or not found.is_dir():
            found = next(Cgroups(self.root).of(uid), None)
            if found is None:
                raise WorldError(f"there is no cgroup of pod {uid} below {self.root}")
            self._found[uid] = found
        return found


@dataclass(slots=True)
class Mps:
    """L3: NVIDIA's Multi-Process Service. Each process of the container gets no more than its memory, and a share of the
    multiprocessors as an upper limit. ``pipes``: the control daemon's folder; ``shm``: what it uses as /dev/shm.

    Source: NVIDIA MPS documentation, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT and CUDA_MPS_ACTIVE_THREAD_PERCENTAGE. The limit is
    per process, and an error of one process on the device ends all of that GPU: the watchdog still counts the pod's sum.
    """

    pipes: Path
    shm: Path | None = None
    name: str = "mps"
    level: str = "L3 MPS"
    computes: bool = True

    def why_not(self) -> str:
        return "" if answers(self.pipes / "control") else f"no MPS control daemon listens in {self.pipes}"

    def edits(self, tenant: Tenant) -> Edits:
        limits = ",".join(f"{at}={grant.mib}M" for at, grant in enumerate(tenant.grants) if not grant.gpu.whole)
        env = {"CUDA_MPS_PIPE_DIRECTORY": MPS_INSIDE, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits}
        if tenant.percent < ALL_SMS:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(tenant.percent)
        mounts = [Mount(str(self.pipes), MPS_INSIDE, writable=True)]
        if self.shm is not None:
            mounts.append(Mount(str(self.shm), "/dev/shm", writable=True))
        return Edits(env, mounts=tuple(mounts))

    def hold(self, uid: str, mib: Mapping[int, int]) -> None:
        """The client's environment holds it."""

    def keep_only(self, uids: Iterable[str]) -> None:
        """Nothing is kept by pod."""


@dataclass(slots=True)
class Hami:
    """L2: HAMi-core's library, loaded before the program by ld.so.preload, if it lies in ``folder`` on the node.

    Source: HAMi-core's README (CUDA_DEVICE_MEMORY_LIMIT_<i>, CUDA_DEVICE_SM_LIMIT, CUDA_DEVICE_MEMORY_SHARED_CACHE) and
    the mounts of HAMi's device plugin. Programs that are linked statically or bring a dynamic linker of their own get round it.
    """

    folder: Path
    name: str = "hami"
    level: str = "L2 HAMi-core"
    computes: bool = True

    def why_not(self) -> str:
        missing = [one for one in ("libvgpu.so", "ld.so.preload") if not (self.folder / one).is_file()]
        return f"{self.folder} has no {missing[0]}" if missing else ""

    def edits(self, tenant: Tenant) -> Edits:
        env = {
            f"CUDA_DEVICE_MEMORY_LIMIT_{at}": f"{grant.mib}m"
            for at, grant in enumerate(tenant.grants)
            if not grant.gpu.whole
        }
        env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{HAMI_INSIDE}/tidewright.cache"
        if tenant.percent < ALL_SMS:
            env["CUDA_DEVICE_SM_LIMIT"] = str(tenant.percent)
        # The table of a container's processes: shared by them alone, whatever user they run as.
        every = self.folder / "containers"
        own = every / f"{tenant.uid}_{tenant.container}"
        try:
            own.mkdir(parents=True, exist_ok=True)
            # root in a container may leave any file here, and no process of the node may use it.
            every.chmod(0o700)
            own.chmod(0o1777)
            (self.folder / "lock").mkdir(exist_ok=True)
            (self.folder / "lock").chmod(0o1777)
        except OSError as error:
            raise WorldError(f"HAMi-core's table cannot be made: {error}") from error
        return Edits(
            env,
            mounts=(
                Mount(str(own), HAMI_INSIDE, writable=True),
                Mount(str(self.folder / "libvgpu.so"), f"{HAMI_INSIDE}/libvgpu.so"),
                Mount(str(self.folder / "ld.so.preload"), "/etc/ld.so.preload"),
                Mount(str(self.folder / "lock"), "/tmp/vgpulock", writable=True),
            ),
        )

    def hold(self, uid: str, mib: Mapping[int, int]) -> None:
        """The library holds it."""

    def keep_only(self, uids: Iterable[str]) -> None:
        """Tables of pods that are gone go, too."""
        here = frozenset(uids)
        with suppress(OSError):
            for path in (self.folder / "containers").iterdir():
                if path.name.partition("_")[0] not in here:
                    shutil.rmtree(path, ignore_errors=True)


@dataclass(slots=True)
class Cooperative:
    """L1: variables that frameworks read. Who does not read them is not limited.

    Sources: JAX, "GPU memory allocation" (XLA_PYTHON_CLIENT_MEM_FRACTION); TensorFlow, "Use a GPU"
    (TF_FORCE_GPU_ALLOW_GROWTH); PyTorch 2.10, per_process_memory_fraction. PyTorch 2.9 reads the variable and refuses the word,
    so it is set only for pods that say ``torch``.
    """

    name: str = "cooperative"
    level: str = "L1 cooperative"
    computes: bool = False

    def why_not(self) -> str:
        return ""

    def edits(self, tenant: Tenant) -> Edits:
        shares = [grant.mib / grant.gpu.memory_mib for grant in tenant.shared() if grant.gpu.memory_mib]
        # Downwards to a thousandth: never more than was given.
        share = int(min([1.0, *shares]) * 1000) / 1000
        if not 0 < share < 1:
            return Edits()
        env = {
            "TIDEWRIGHT_GPU_MEMORY_FRACTION": f"{share}",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{share}",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        }
        if "torch" in tenant.cooperates:
            env["PYTORCH_ALLOC_CONF"] = f"per_process_memory_fraction:{share}"
        # Who sets one himself knows better what his program does with it.
        return Edits({key: value for key, value in env.items() if key not in tenant.own})

    def hold(self, uid: str, mib: Mapping[int, int]) -> None:
        """Nothing is enforced."""

    def keep_only(self, uids: Iterable[str]) -> None:
        """Nothing is kept by pod."""
