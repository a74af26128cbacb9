"""The isolation ladder: what keeps a container to its share of a GPU, from hardware (L5) down to asking politely (L1).

Each level says at the start why it cannot be used here; the strongest that can be is. What no level enforces the watchdog (L0)
watches. Nothing here is a hook of our own: the levels are MIG, the driver's limits by cgroup, NVIDIA's MPS, HAMi-core's library
if it is installed on the node, and variables that frameworks read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...base.errors import UsageError, WorldError
from ..node.cdi import Edits
from ..node.gpus import Gpu
from ..objects import names
from ..objects.log import Log
from ..objects.metadata import Json, annotations_of
from ..objects.quantity import whole

MIG = "L5 MIG"
CHOICES = ("auto", "driver", "mps", "hami", "cooperative", "off")
"""Of ``--isolation``. MIG is not among them: an instance isolates whether one wants it or not."""
ALL_SMS = 100


@dataclass(frozen=True, slots=True)
class Grant:
    """So many MiB of one GPU."""

    gpu: Gpu
    mib: int


@dataclass(frozen=True, slots=True)
class Tenant:
    """A container with GPUs. ``grants`` in the order in which it sees them; ``percent`` of their multiprocessors;
    ``own``: variables it sets itself; ``cooperates``: frameworks that its pod says will listen."""

    uid: str
    container: str
    grants: tuple[Grant, ...]
    percent: int = ALL_SMS
    own: frozenset[str] = frozenset()
    cooperates: frozenset[str] = frozenset()

    def shared(self) -> tuple[Grant, ...]:
        """Those of GPUs that others may be on too."""
        return tuple(grant for grant in self.grants if not grant.gpu.whole)


class IsolationLevel(Protocol):
    """One way to isolate. ``level`` as it is shown; ``computes``: it limits multiprocessors, too."""

    name: str
    level: str
    computes: bool

    def why_not(self) -> str:
        """Why it cannot be used on this node now; empty when it can. May take a moment."""
        ...

    def edits(self, tenant: Tenant) -> Edits:
        """What the container needs for it. Raises WorldError."""
        ...

    def hold(self, uid: str, mib: Mapping[int, int]) -> None:
        """Limit a pod as a whole: MiB by GPU. Raises WorldError. Called again and again while the pod is there."""
        ...

    def keep_only(self, uids: Iterable[str]) -> None:
        """Other pods are gone."""
        ...


@dataclass(slots=True)
class IsolationLadder:
    """``levels`` from the strongest to the weakest; ``chosen``: one of CHOICES. ``memory`` and ``compute`` are the levels in
    force as of the last ``climb``, for GPUs that are not MIG instances."""

    gpus: Sequence[Gpu]
    levels: Sequence[IsolationLevel] = ()
    chosen: str = "auto"
    log: Log = lambda text: None
    memory: IsolationLevel | None = None
    compute: IsolationLevel | None = None
    refused: dict[str, str] = field(default_factory=dict)
    """Why a level is not in use, by its name."""
    _failing: dict[str, str] = field(default_factory=dict)
    _begun: bool = False

    def __post_init__(self) -> None:
        if self.chosen not in CHOICES:
            raise UsageError(f"isolation {self.chosen!r} does not exist", f"choose one of {', '.join(CHOICES)}")

    def select(self) -> bool:
        """Try the levels; whether the level changed. Raises UsageError when the one that was asked for cannot be had the first
        time; later it is only not in force, for what runs must go on."""
        before = self.level()
        if any(not gpu.whole for gpu in self.gpus):
            asked = [level for level in self.levels if self.chosen in ("auto", level.name)]
            self.refused = {level.name: why for level in asked if (why := level.why_not())}
            if self.chosen in self.refused and not self._begun:
                raise UsageError(
                    f"isolation {self.chosen} cannot be used here: {self.refused[self.chosen]}",
                    "mend that, or give --isolation auto",
                )
            usable = [level for level in asked if level.name not in self.refused]
            self.memory = usable[0] if usable else None
            self.compute = next((level for level in usable if level.computes), None)
        self._begun = True
        return self.level() != before

    def level(self, grants: Iterable[Grant] | None = None) -> str:
        """In force on the node, or for a pod with these; empty when nothing is."""
        gpus = self.gpus if grants is None else [grant.gpu for grant in grants]
        found = [MIG] if any(gpu.whole for gpu in gpus) else []
        if self.memory is not None and any(not gpu.whole for gpu in gpus):
            found.append(self.memory.level)
            if self.compute is not None and self.compute is not self.memory:
                found.append(f"{self.compute.level} for compute")
        return ", ".join(found)

    def why_no_more(self) -> str:
        """Why the levels that are not in force are not, to put behind the level; empty when nothing was refused."""
        refused = "; ".join(f"{name}: {why}" for name, why in self.refused.items())
        return f" (not {refused})" if refused else ""

    def edits(self, tenant: Tenant) -> Edits:
        """Of the levels in force. Raises WorldError, when the container must not start yet."""
        found = Edits()
        if tenant.shared():
            if self.chosen in self.refused:
                raise WorldError(f"isolation {self.chosen} is unavailable: {self.refused[self.chosen]}")
            for level in self._in_force():
                found = found.plus(level.edits(tenant))
        return found

    def hold(self, pods: Mapping[str, Mapping[int, int]]) -> None:
        """Limit pods as a whole: MiB by uid and GPU, of all that are on this node. What fails is noted once and tried again
        at the next call."""
        for level in self._in_force():
            level.keep_only(pods)
        for uid, mib in pods.items():
            try:
                self.hold_one(uid, mib)
                self._failing.pop(uid, None)
            except WorldError as error:
                if self._failing.get(uid) != str(error):
                    self._failing[uid] = str(error)
                    self.log(f"pod {uid} is not limited yet: {error}")
        self._failing = {uid: text for uid, text in self._failing.items() if uid in pods}

    def hold_one(self, uid: str, mib: Mapping[int, int]) -> None:
        """Limit one pod as a whole: MiB by GPU. Raises WorldError; its containers must not start before it goes well."""
        shared = {gpu.index for gpu in self.gpus if not gpu.whole}
        if ours := {gpu: count for gpu, count in mib.items() if gpu in shared}:
            for level in self._in_force():
                level.hold(uid, ours)

    def _in_force(self) -> list[IsolationLevel]:
        """Memory last, so that where both set a variable it is memory's."""
        other = None if self.compute is self.memory else self.compute
        return [level for level in (other, self.memory) if level is not None]


def percent_of(pod: Json) -> int:
    """Of a GPU's multiprocessors, by the pod's annotation; all without one. Raises UsageError."""
    text = annotations_of(pod).get(names.SM_PERCENT)
    if text is None:
        return ALL_SMS
    found = whole(text, f"annotation {names.SM_PERCENT}")
    if not 1 <= found <= ALL_SMS:
        raise UsageError(f"annotation {names.SM_PERCENT} is {found}", f"give 1 to {ALL_SMS}")
    return found


def tenant_of(pod: Json, container: str, grants: Iterable[Grant]) -> Tenant:
    """A container of a pod as the API server has it. Raises UsageError."""
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    every = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    found: Json = next((one for one in every if one.get("name") == container), {})
    own = frozenset(str(one.get("name", "")) for one in found.get("env") or ())
    listens = str(annotations_of(pod).get(names.COOPERATES, "")).replace(" ", "").split(",")
    return Tenant(str(meta.get("uid", "")), container, tuple(grants), percent_of(pod), own, frozenset(listens) - {""})
