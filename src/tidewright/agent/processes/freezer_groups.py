"""Freezer groups and groups with limits of attempts on this node: none stays once its rank has left, however the rank left.

A group cannot be removed while a process in it is dying, and a rank that has moved away is not waited for; so whatever
stays is looked for by name, when an attempt is dropped and now and then.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...checkpoint.cgroup import Freezer, remove
from ...checkpoint.limits import HostLimits
from .attempt import Attempt

Key = tuple[int, int]


class RankGroups:
    """``tags`` are in the names of this agent's groups (layout.AgentLayout)."""

    def __init__(self, freezer: Freezer, limits: HostLimits, tags: tuple[str, ...]) -> None:
        self._freezer, self._limits, self._prefixes = freezer, limits, [f"tidewright-{tag}-" for tag in tags]

    def _made(self, rest: str = "") -> list[str]:
        names = [prefix + rest for prefix in self._prefixes]
        found = (group for name in names for group in (*self._freezer.made(name), *self._limits.made(name)))
        return list(dict.fromkeys(found))

    def clear_attempt(self, key: Key) -> None:
        """The attempt has left this node: remove the groups of all its ranks, of earlier generations, too."""
        for group in self._made(f"{key[0]}.{key[1]}."):
            remove((group,))

    def clear(self, attempts: Mapping[Key, Attempt]) -> None:
        """Remove groups that belong to no rank of these attempts. Attempts at which something is being done are left alone:
        new groups are made before the ranks that they are for."""
        specs = (rank.spec for attempt in attempts.values() if not attempt.over for rank in attempt.ranks)
        known = {group for spec in specs if spec for group in spec.groups}
        for group in self._made():
            attempt = attempts.get(self._key(group))
            if group not in known and not (attempt is not None and attempt.busy):
                remove((group,))

    def _key(self, group: str) -> Key:
        """The attempt that a group was made for; one that does not exist for a name of another kind."""
        job, attempt, *_ = [*group.rpartition("-")[2].split("."), "", ""]
        return (int(job), int(attempt)) if job.isdecimal() and attempt.isdecimal() else (0, -1)
