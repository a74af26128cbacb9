"""Which GPUs each pod of a node was bound to, as first seen.

A client that may edit a pod may edit its annotations, so later values are no evidence: only the version with which the pod was
first seen on the node, and what this plugin wrote itself since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..objects import names
from ..objects.metadata import Json, annotations_of, labels_of, uid_of

RECORDED = (names.IDX, names.DEV, names.POD, names.ALLOCATION, names.ASSUME_TIME, names.NODE, names.COUNT)


class SlotRecords:
    """By uid. A pod that is first seen without a GPU is recorded once it has one."""

    def __init__(self) -> None:
        self._notes: dict[str, dict[str, str]] = {}
        self._labels: dict[str, dict[str, str]] = {}

    def see(self, pod: Json) -> None:
        """A version of a pod on this node; all but the first one are ignored."""
        uid, notes = uid_of(dict(pod)), annotations_of(pod)
        if uid not in self._notes and (names.IDX in notes or names.ALLOCATION in notes):
            self._notes[uid] = _recorded(notes)
            self._labels[uid] = _recorded(labels_of(pod))

    def wrote(self, uid: str, notes: Mapping[str, str | None]) -> None:
        """Annotations that this plugin gave the pod; None for one that it took away."""
        kept = {**self._notes.get(uid, {}), **{key: text for key, text in notes.items() if text is not None}}
        self._notes[uid] = {key: text for key, text in kept.items() if notes.get(key, text) is not None}

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._notes.pop(uid, None)
        self._labels.pop(uid, None)

    def applied(self, pod: Json) -> Json:
        """The pod as recorded, and as it is now in all that is not recorded."""
        uid = uid_of(dict(pod))
        if uid not in self._notes:
            return pod
        meta: dict[str, Any] = dict(pod["metadata"])
        meta["annotations"] = _others(annotations_of(pod)) | self._notes[uid]
        meta["labels"] = _others(labels_of(pod)) | self._labels.get(uid, {})
        return {**pod, "metadata": meta}


def _recorded(found: Json) -> dict[str, str]:
    return {key: text for key, text in found.items() if key in RECORDED}


def _others(found: Json) -> dict[str, str]:
    return {key: text for key, text in found.items() if key not in RECORDED}
