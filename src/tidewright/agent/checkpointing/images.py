"""A node's images: raw ones as CRIU left them, the store behind them, and copies from and to other nodes.

Everything here blocks and is called in threads. Raw images are quick to come back from and big; each is kept until it
is in the store and its job runs again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...base.errors import TideError, WorldError
from ...base.paths import make_below, matching
from ...checkpoint.files.space import is_full, refusal, require
from ...checkpoint.manifest import DamagedImage, manifest_digest, unlisted, verify
from ...checkpoint.store import Erasable, ImageName, PutReport, Remote, StoreFull, is_key
from ...checkpoint.store.put_worker import Load, PutOrder, put_in_worker
from ...wire.agent import FetchArgs, Peer
from ..peer_rpc import FileBody, PeerClient
from .image_copies import PeerRemote, hopeless
from .image_leases import ReadLeases
from .in_flight import ImageNotNeeded, InFlight, KeyedLocks
from .lazy_store import LazyStore
from .raw_images import FACTS, RawImages, image_of, inside, remove_whatever
from .remote_gc import PendingDeletes

if TYPE_CHECKING:
    from ...checkpoint.store import ImageStore

log = logging.getLogger(__name__)

COLLECT_S = 30.0
"""Least time between two looks for pages that no image needs."""
COPIES_AT_ONCE = 4
"""Rank images brought here side by side: one connection does not fill a fast network, nor one core check what comes."""
MAX_SERIAL = 2**63 - 1
KEPT = 2
"""Images kept per job: the last one, and the one before in case the last turns out damaged."""


class Images(RawImages):
    """``token`` opens the depots of other nodes; ``remote`` (optional) is where every image is pushed to as well, and is
    removed from (``graves``) once it is dropped here."""

    def __init__(self, root: Path, token: str, quota_bytes: int = 0, remote: Erasable | None = None) -> None:
        super().__init__(root / "work")
        self._lazy_store = LazyStore(PutOrder(str(root / "store"), quota_bytes, token.encode(), ()))
        self.remote = remote
        self.pending_deletes = PendingDeletes(root / "graves", self.store, remote) if remote is not None else None
        self._token = token
        self._storing, self._leases = threading.Lock(), ReadLeases()
        self._collected, self._garbage = time.monotonic(), False
        self._in_flight, self._over, self._bringing = InFlight(), dict[int, None](), KeyedLocks()

    @property
    def store(self) -> ImageStore:
        """Raises WorldError where it cannot be made."""
        return self._lazy_store.open()

    def put(self, tenant: str, job: int, serial: int, ranks: Iterable[int]) -> list[PutReport]:
        """Take raw images into the store, once no node copies them any more. Raises WorldError (disk full, quota), and
        ImageNotNeeded when the job ends meanwhile."""
        loads = []
        self._leases.wait((job, serial))
        with self._in_flight.image(job, serial), self._kept_if_needed(job, serial), self._storing:
            for rank in ranks:
                name, facts = ImageName(tenant, job, serial, rank), self.facts(job, serial, rank)
                if facts is None:
                    raise WorldError(f"image {serial} of job {job}, rank {rank}, is not here")
                if not self.store.whole(name):
                    self.store.drop(name)  # one that is damaged
                    loads.append(Load(name, str(self.raw(job, serial) / str(rank)), facts))
            return self._put(loads)

    @contextlib.contextmanager
    def _kept_if_needed(self, job: int, serial: int) -> Iterator[None]:
        """For whatever brings an image here: if the job ends meanwhile, nothing of it is left. Raises Unneeded then."""
        try:
            yield
        except (TideError, OSError):
            if not self._in_flight.unneeded(job, serial):
                raise
        if self._in_flight.unneeded(job, serial):
            self._drop(job, serial)
            self._garbage = True
            raise ImageNotNeeded(f"{image_of(job, serial)} is not needed any more")

    def _put(self, loads: list[Load]) -> list[PutReport]:
        """Into the store; one that is full is cleared up first."""
        made: list[PutReport] = []
        for another in (True, False):
            if left := loads[len(made) :]:
                key = left[0].name.job, left[0].name.serial
                more, why = put_in_worker(
                    replace(self._lazy_store.order, loads=tuple(left)),
                    functools.partial(self._in_flight.abort_by, *key),
                )
                made += more
                if why is not None:
                    if not (another and isinstance(why, StoreFull)):
                        raise why
                    self.store.gc()
        return made

    def push(self, tenant: str, job: int, serial: int, ranks: Iterable[int]) -> bool:
        """Copy images to the remote store. False: none is configured. Raises WorldError."""
        if self.remote is None:
            return False
        with self._in_flight.image(job, serial), self._kept_if_needed(job, serial):
            for name in (ImageName(tenant, job, serial, rank) for rank in ranks):
                self._push(name, self.remote)
        return True

    def _push(self, name: ImageName, remote: Remote) -> None:
        assert self.pending_deletes is not None
        with self.pending_deletes.sending(name.tenant, name.file, lambda: self.store.has(name)):
            self.store.push(name, remote)

    def _delete_remotely(self, tenant: str, pending: str) -> None:
        """See that copies in the remote store go, too."""
        if self.pending_deletes is not None:
            self.pending_deletes.add(tenant, pending)

    def keep_newest(self, tenant: str, job: int, newest: int, previous: int = 0) -> None:
        """Drop all images of a job but the last ``KEPT`` up to ``newest``; or but ``newest`` and ``previous``, the last one
        that the job could come back from (the last one before that, where it is not here): what is between is here, and failed
        elsewhere or was given up."""
        serials = sorted(self._all_serials(job))
        old = [serial for serial in serials if serial <= newest][:-KEPT]
        if 0 < previous < newest:
            kept = max((serial for serial in serials if serial <= previous), default=0)
            old = [serial for serial in serials if serial < newest and serial != kept]
        for serial in old:
            self._drop(job, serial)
        if old:
            self._collect()

    def last_serial(self, job: int) -> int:
        """The highest number of the job's images that are here, whole or not, or on their way; 0: there are none."""
        return max(self._all_serials(job) | self._in_flight.serials(job), default=0)

    def drop_job(self, job: int, last: int = MAX_SERIAL) -> None:
        """Images of the job up to number ``last`` are not kept, here or in the remote store, nor what is on its way. Later
        ones are those of a job that has started over."""
        names = [name for name in self._names(job) if name.serial <= last]
        for tenant, serial in {
            name.tenant: name.serial for name in sorted(names, key=lambda name: name.serial)
        }.items():
            self._delete_remotely(tenant, f"{job}.{serial}")  # whichever node made them
        serials = {serial for serial in self._all_serials(job) if serial <= last}
        self._in_flight.drop(job, serials, last)
        for serial in serials:
            self._drop(job, serial)
        self._over.pop(job, None)
        if serials:
            self._collect()

    def _all_serials(self, job: int) -> set[int]:
        return {name.serial for name in self._names(job)} | self.serials(job)

    def end_job(self, job: int) -> None:
        """Note that ``drop_job`` is to come; ``finish`` makes up for it. Does not block."""
        self._over[job] = None

    def drop_unknown(self, job: int, serial: int) -> None:
        """An image that was made too late for any controller to know of it."""
        self._drop(job, serial)
        self._collect()

    def finish(self) -> None:
        """Before the agent ends: what of ended jobs is still to be removed, it may not be here again for long. Where images of
        other jobs stay, sorting out their pages takes its time, and is left to the next agent."""
        for job in list(self._over):
            self.drop_job(job)
        if not self._names():
            self.collect_due(0.0)
        if self.pending_deletes is not None and self.pending_deletes.waiting():
            self.pending_deletes.run()

    def _collect(self, least_s: float = COLLECT_S) -> None:
        self._garbage = True
        self.collect_due(least_s)

    def collect_due(self, least_s: float = COLLECT_S) -> None:
        """Give back what dropped images took, now and then: it means to look at every image of the store."""
        due = self._garbage and time.monotonic() - self._collected >= least_s
        if due and self._storing.acquire(blocking=False):
            try:
                self._collected, self._garbage = time.monotonic(), False
                self._gc()
            finally:
                self._storing.release()

    def _drop(self, job: int, serial: int) -> None:
        self.discard_raw(job, serial)
        for name in self._names(job):
            if name.serial == serial:
                self._delete_remotely(name.tenant, name.file)
                self.store.drop(name)

    def _names(self, job: int | None = None) -> list[ImageName]:
        """What is in the store; none is made for the question."""
        names = self.store.names() if self._lazy_store.exists() else []
        return [name for name in names if job is None or name.job == job]

    def listed(self) -> tuple[tuple[int, int, int], ...]:
        """(job, serial, rank) of everything that could be restored or fetched from here."""
        found = {(name.job, name.serial, name.rank) for name in self._names()}
        for path in matching(self._work, f"[0-9]*.*/*{FACTS}"):
            job, _, serial = path.parent.name.partition(".")
            name = int(job), int(serial), int(path.stem)
            if self.has_raw(*name):  # a power cut leaves names without content
                found.add(name)
        return tuple(sorted(found))

    def sweep(self) -> None:
        """Remove halves that an agent which was killed left, and pages that nothing refers to."""
        self.sweep_raw()
        if self.pending_deletes is not None:
            self.pending_deletes.recover(lambda name: self.store.has(name))
        self._gc()

    def _gc(self) -> None:
        try:
            if self._lazy_store.exists():
                self.store.gc()
        except WorldError as error:  # a node with a damaged store is of use still
            log.warning("the image store is not cleared up: %s", error)

    # from elsewhere

    def ready(self, tenant: str, job: int, serial: int, ranks: Iterable[int], sources: Iterable[Peer]) -> Path:
        """Make sure that the raw images of these ranks are here; where they are. Raises WorldError, and DamagedImage when
        every copy that could be had is damaged, so that another try is of no use.

        The nearest copy first: raw here, the store here, raw at a source, a source's store, the remote store.
        """
        with self._bringing.of((job, serial)):  # several replicas may start from one image
            return self._bring_missing(tenant, job, serial, ranks, sources)

    def _bring_missing(self, tenant: str, job: int, serial: int, ranks: Iterable[int], sources: Iterable[Peer]) -> Path:
        missing = [rank for rank in ranks if not self.has_raw(job, serial, rank)]
        directory = self.raw(job, serial)
        if not directory.is_dir():
            remove_whatever(directory)
        self.forget_ranks(job, serial, missing)  # what is incomplete would be in the way of a copy
        directory.mkdir(mode=0o700, exist_ok=True)
        with self._in_flight.image(job, serial), self._kept_if_needed(job, serial):
            names = [ImageName(tenant, job, serial, rank) for rank in missing]
            try:
                with ThreadPoolExecutor(COPIES_AT_ONCE, thread_name_prefix="copy") as pool:
                    list(pool.map(self._have, names, repeat(directory), repeat(list(sources))))
            except BaseException:
                self.forget_ranks(job, serial, missing)
                self._collect(0.0)  # no image needs the packs that were fetched, and the disk may be full
                raise
        return directory

    def _have(self, name: ImageName, directory: Path, sources: list[Peer]) -> None:
        why: list[Exception] = []
        if not self._bring(name, directory / str(name.rank), sources, why):
            said = "; ".join(map(str, why)) or "no node that has it is known"
            kind = DamagedImage if hopeless(why) else WorldError
            raise kind(f"{name} is not available from any source: {said}")

    def _bring(self, name: ImageName, into: Path, sources: list[Peer], why: list[Exception]) -> bool:
        """Bring one rank image here, or add to ``why``: one reason per place tried."""
        if self._from_store(name, into, why):
            return True
        for peer in sources:
            client = PeerClient(peer, self._token)
            try:
                self._copy_raw(client, name, into)
                return True
            except (WorldError, OSError) as error:
                why.append(error)
                if is_full(error):  # here; no other source changes that
                    return False
            finally:
                client.close()
        remotes = [*(PeerRemote(peer, self._token) for peer in sources), *([self.remote] if self.remote else [])]
        return any(self._pull(name, remote, why) and self._from_store(name, into, why) for remote in remotes)

    def _from_store(self, name: ImageName, into: Path, why: list[Exception]) -> bool:
        try:
            if not (self._lazy_store.exists() and self.store.has(name)):
                return False
            self.store.get(name, into)
            self.note(name.job, name.serial, name.rank, self.store.meta(name))
            return True
        except (TideError, OSError) as error:
            why.append(error)
            return False

    def _pull(self, name: ImageName, remote: Remote, why: list[Exception]) -> bool:
        try:
            self.store.pull(name, remote)
            return True
        except (TideError, OSError) as error:
            why.append(error)
            return False

    def fetch(self, args: FetchArgs) -> int:
        """Take copies of rank images into this node's store; bytes added. Raises WorldError."""
        before = self.store.stored_bytes()
        with self._in_flight.image(args.job, args.serial), self._kept_if_needed(args.job, args.serial):
            for rank in args.ranks:
                name = ImageName(args.tenant, args.job, args.serial, rank)
                why: list[Exception] = []
                remotes = [PeerRemote(peer, self._token) for peer in args.sources]
                if not self.store.whole(name) and not any(self._pull(name, remote, why) for remote in remotes):
                    self._collect(0.0)  # no image needs the packs that were fetched, and the disk may be full
                    raise WorldError("; ".join(map(str, why)) or "no node that has it is known")
        return self.store.stored_bytes() - before

    def _copy_raw(self, client: PeerClient, name: ImageName, into: Path) -> None:
        what = {"job": name.job, "serial": name.serial, "rank": name.rank}
        listing = client.ask("raw_list", what)
        draft = into.with_name(f".{into.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        size = sum(int(size) for _, size in listing["files"])
        require(into.parent, size, f"a copy of {name}")
        try:
            self._read_raw(client, name, listing, draft)
        except OSError as error:
            raise refusal(into.parent, f"a copy of {name}", size) if is_full(error) else error from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # there only if it came to no end
        self.note(name.job, name.serial, name.rank, listing["facts"])

    def _read_raw(self, client: PeerClient, name: ImageName, listing: dict[str, Any], draft: Path) -> None:
        what = {"job": name.job, "serial": name.serial, "rank": name.rank}
        for relative, _size in listing["files"]:
            path = inside(draft, relative)
            make_below(draft.parent, path.parent)
            with path.open("wb") as file:
                for piece in client.read("raw_file", {**what, "name": relative}):
                    file.write(piece)
        if manifest_digest(draft) != listing["manifest"] or unlisted(draft):
            raise WorldError(f"{name} was altered on its way from node {client.peer.node}")
        verify(draft)
        draft.rename(draft.with_name(str(name.rank)))

    # for elsewhere

    def handlers(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        """What other nodes may ask of this one's images, for its depot."""
        here = self._lazy_store.exists
        return {
            "raw_list": self.raw_list,
            "raw_file": self.raw_file,
            "store_has": lambda args: sorted(self.store.objects.has(args["keys"])) if here() else [],
            "store_list": lambda args: self.store.objects.list(str(args["prefix"])) if here() else [],
            "store_read": self.store_read,
        }

    def store_read(self, args: dict[str, Any]) -> FileBody:
        """One object of the store. Raises WorldError when there is none of that key."""
        key = str(args["key"])
        path = self.store.objects.path(key)
        return FileBody(path, 0, path.stat().st_size, secret=is_key(key))

    def raw_list(self, args: dict[str, Any]) -> dict[str, Any]:
        """The files of a rank's raw image. Raises WorldError when it is not here."""
        job, serial, rank = int(args["job"]), int(args["serial"]), int(args["rank"])
        if not self.has_raw(job, serial, rank):
            raise WorldError(f"no raw image {serial} of job {job}, rank {rank}")
        root = self.raw(job, serial) / str(rank)
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        return {
            "files": [[str(path.relative_to(root)), path.stat().st_size] for path in files],
            "manifest": manifest_digest(root),
            "facts": self.facts(job, serial, rank),
        }

    def raw_file(self, args: dict[str, Any]) -> FileBody:
        """One of the files that ``raw_list`` named."""
        root = self.raw(int(args["job"]), int(args["serial"])) / str(int(args["rank"]))
        path, key = inside(root, str(args["name"])), (int(args["job"]), int(args["serial"]))
        size = path.stat().st_size
        self._leases.begin(key)
        return FileBody(path, 0, size, lambda: self._leases.end(key))
