"""GPU admission against a model of a node: whatever happens to pods, plugin and file, what runs fits."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.kube.objects import pod
from tidewright.base.errors import WorldError
from tidewright.kube.allocation.container_lookup import CheckpointEntry
from tidewright.kube.allocation.units import id_of
from tidewright.kube.node.cgroups import ABSENT, BUSY, IDLE
from tidewright.kube.node.gpus import FakeGpus
from tidewright.kube.objects import names
from tidewright.kube.objects.metadata import ENDED, phase
from tidewright.kube.objects.pod_request import GpuAssignment, read_gpu_assignment
from tidewright.kube.plugin.allocation_file import NAME, AllocationFile
from tidewright.kube.plugin.gpu_admission import POLL_S, SETTLE_S, GpuAdmission

from ..sizes import examples

SIZE = 15


class Node(RuleBasedStateMachine):
    """``objects``: of the API server. ``cgroups``: state by uid. ``running``: units by GPU of pods with processes."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory(prefix="tide-")
        self.objects: dict[str, dict[str, Any]] = {}
        self.cgroups: dict[str, str] = {}
        self.running: dict[str, dict[int, int]] = {}
        self.asked: dict[str, dict[int, int]] = {}
        """By the specs of all pods that there ever were."""
        self.forgotten: set[str] = set()
        """Deleted pods that run and are not in the kubelet's checkpoint any more."""
        self.now_s, self.count = 0.0, 0
        self.runner = asyncio.Runner()
        self.admission = self.started()

    def teardown(self) -> None:
        self.runner.close()
        self.home.cleanup()

    def started(self) -> GpuAdmission:
        """The plugin as it begins on this node."""
        synced = SimpleNamespace(is_set=lambda: True)
        pods = SimpleNamespace(
            reflector=SimpleNamespace(objects=self.objects, synced=synced), known=lambda: tuple(self.objects.values()),
            ended=lambda: frozenset(uid for uid, one in self.objects.items() if phase(one) in ENDED),
        )  # fmt: skip
        cgroups: Any = SimpleNamespace(state=lambda uid: self.cgroups.get(uid, ABSENT), root="/")
        gpus = {gpu.index: gpu for gpu in FakeGpus(f"2x{SIZE}").found()}
        folder: Any = SimpleNamespace(given=self.checkpoint)
        file = AllocationFile(Path(self.home.name) / NAME)
        return GpuAdmission(
            gpus, dict.fromkeys(gpus, SIZE), pods, folder, file, cgroups, lambda text: None, lambda: self.now_s  # type: ignore[arg-type]
        )  # fmt: skip

    def checkpoint(self) -> tuple[CheckpointEntry, ...]:
        """The kubelet's, with ids of the chosen GPUs."""
        held = {
            uid: frozenset(id_of(gpu, at) for gpu, n in units.items() for at in range(n))
            for uid, units in self.running.items()
            if uid not in self.forgotten
        }
        return tuple(CheckpointEntry(uid, "c", ids) for uid, ids in held.items())

    @rule(units=st.sampled_from([1, 5, 10, SIZE]), gpu=st.integers(0, 1))
    def bind(self, units: int, gpu: int) -> None:
        """Somebody binds a pod, whether it fits or not."""
        self.count += 1
        notes = {names.IDX: str(gpu), names.POD: str(units), names.ASSIGNED: "false", names.NODE: "n"}
        self.asked[f"u{self.count}"] = {gpu: units}
        self.objects[f"u{self.count}"] = pod(f"p{self.count}", units, node="n", notes=notes, uid=f"u{self.count}")

    @precondition(lambda self: self.objects)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """The kubelet starts or restarts a container of a pod."""
        self.start_container(data.draw(st.sampled_from(sorted(self.objects))))

    @precondition(lambda self: self.objects)
    @rule()
    def start_all(self) -> None:
        """As it comes to them."""
        for uid in sorted(self.objects):
            self.start_container(uid)

    def start_container(self, uid: str) -> None:
        """Of a pod that has not ended."""
        if phase(self.objects[uid]) in ENDED:
            return
        self.cgroups.setdefault(uid, IDLE)
        self.now_s += POLL_S
        held = self.assignment(uid)
        rest = Counter[int]()
        for other, units in self.running.items():
            rest.update(units if other != uid else {})
        fits = all(rest[gpu] + units <= SIZE for gpu, units in held.units.items())
        try:
            self.runner.run(self.admission.admit(held, self.now_s))
        except WorldError as error:
            assert uid not in self.running, "a pod that runs never waits"
            assert "the kubelet retries" in str(error)
            return
        assert fits or uid in self.running
        self.runs(uid)

    @precondition(lambda self: len(self.objects) > 1)
    @rule()
    def start_all_at_once(self) -> None:
        """As after an outage of the plugin, when all calls that waited for it come together."""
        uids = [uid for uid in sorted(self.objects) if phase(self.objects[uid]) not in ENDED]
        self.now_s += POLL_S
        found = self.runner.run(self.admitted(uids))
        for uid in uids:
            self.cgroups.setdefault(uid, IDLE)
        for uid, error in zip(uids, found, strict=True):
            if error is None:
                self.runs(uid)
            else:
                assert isinstance(error, WorldError) and uid not in self.running, error

    async def admitted(self, uids: list[str]) -> list[BaseException | None]:
        calls = [self.admission.admit(self.assignment(uid), self.now_s) for uid in uids]
        return await asyncio.gather(*calls, return_exceptions=True)

    def assignment(self, uid: str) -> GpuAssignment:
        held = read_gpu_assignment(self.objects[uid])
        assert held is not None
        return held

    def runs(self, uid: str) -> None:
        self.cgroups[uid], self.running[uid] = BUSY, self.asked[uid]
        self.objects[uid]["status"]["phase"] = "Running"

    @precondition(lambda self: self.objects)
    @rule(
        data=st.data(), text=st.sampled_from(["0", "1", "7", "9999"]), name=st.sampled_from([names.POD, names.ASSIGNED])
    )
    def edit(self, data: st.DataObject, text: str, name: str) -> None:
        """The owner of a pod writes into its annotations; which GPU it is stays."""
        uid = data.draw(st.sampled_from(sorted(self.objects)))
        self.objects[uid]["metadata"]["annotations"][name] = "true" if name == names.ASSIGNED else text

    @precondition(lambda self: self.objects)
    @rule(data=st.data())
    def force_delete(self, data: st.DataObject) -> None:
        """The object is deleted; what runs goes on."""
        uid = data.draw(st.sampled_from(sorted(self.objects)))
        del self.objects[uid]
        if uid not in self.running:
            self.cgroups.pop(uid, None)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), cgroup_stays=st.booleans())
    def exit(self, data: st.DataObject, cgroup_stays: bool) -> None:
        """All processes of a pod exit; the kubelet reports it where there is an object."""
        uid = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[uid]
        self.cgroups[uid] = IDLE if cgroup_stays else ABSENT
        if uid in self.objects:
            self.objects[uid]["status"]["phase"] = "Succeeded"

    @rule()
    def kubelet_allocates(self) -> None:
        """It drops pods that are deleted from its checkpoint then."""
        self.forgotten |= self.running.keys() - self.objects.keys()

    @rule(lose=st.sampled_from(["", "remove", "damage"]))
    def restart_plugin(self, lose: str) -> None:
        """As after a kill -9; with its file, without it, or with a damaged one where the checkpoint knows all."""
        path = self.admission.file.path
        lose = "" if self.forgotten & self.running.keys() else lose
        if lose == "remove":
            path.unlink(missing_ok=True)
        elif lose == "damage":
            path.write_text('{"format": 1, "po')
        self.admission = self.started()

    @rule()
    def refresh(self) -> None:
        self.runner.run(self.admission.refresh())
        assert self.admission.orphans.keys() >= self.running.keys() - self.objects.keys()

    @precondition(lambda self: len(self.running) > 2)
    @rule()
    def all_exit_and_all_is_free(self) -> None:
        """No share is lost: when nothing runs, a whole GPU is admitted."""
        for uid in list(self.running):
            del self.running[uid]
            self.cgroups[uid] = IDLE
        self.objects.clear()
        self.now_s += SETTLE_S + 1
        self.runner.run(self.admission.refresh())
        assert not self.admission.allocated and not self.admission.file.path.exists()

    @invariant()
    def what_runs_fits(self) -> None:
        used = Counter[int]()
        for units in self.running.values():
            used.update(units)
        assert all(count <= SIZE for count in used.values()), self.running


Node.TestCase.settings = settings(deadline=None, max_examples=examples(60), stateful_step_count=25)
TestNode = Node.TestCase
