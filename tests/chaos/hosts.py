"""Three hosts on this machine, jobs with images on them, and everything that can be done to either.

A host is an agent with a state directory of its own; it is lost when its agent and all ranks below it are killed and a
decoy keeps its place, so that no new agent is started there until the decoy is taken away.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.unmodified.harness import Outcome, differences, read, run_plain, user_environment
from tests.unmodified.pool import FINAL, Pool
from tests.unmodified.programs import Program
from tidewright.agent.layout import AgentLayout
from tidewright.app.start import controller_pid
from tidewright.base.errors import TideError
from tidewright.base.units import SECOND
from tidewright.checkpoint.cgroup import remove, wait_until
from tidewright.checkpoint.processes import PROC, grouped, send
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.wire.api import CauseView, JobView

NODE_TIMEOUT_S = 2
EVERY_S = 3
"""Between images of a job."""
HOSTS = {"a": "1:0", "b": "1:1", "c": "2:0-1"}

NAMED_IMAGE = re.compile(r"\bimage (\d+)\b")
"""In the words of an agent."""
GOOD_IMAGE = {Code.RUNS_FROM_IMAGE, Code.ROLLED_BACK, Code.IMAGE_UNUSABLE}
"""These name an image that there was, in ``serial``."""
AMOUNT = {Code.ROLLED_BACK, Code.NO_IMAGE_LEFT, Code.NO_IMAGE}
"""These say how much work is lost."""


class Hosts(Pool):
    """The pool and the faults. A fault returns whether it hit anything; ``clean`` leaves nothing behind."""

    names = HOSTS

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.decoys: dict[str, subprocess.Popen[bytes]] = {}
        self.mounted: list[Path] = []
        self.stopped: list[int] = []
        self.ids: dict[str, int] = {}

    # -- daily life -------------------------------------------------------------------------------------------------

    def up(self) -> None:
        hosts = [word for name, shape in HOSTS.items() for word in ("--host", f"{name}={shape}")]
        self.tide("up", *hosts, "--policy", "fifo", "--node-timeout", f"{NODE_TIMEOUT_S}s")
        self.until(lambda: self.states() == dict.fromkeys(HOSTS, "up"))
        assert all(node.full for node in self.client().nodes().nodes), [n.full_why for n in self.client().nodes().nodes]

    def states(self) -> dict[str, str]:
        return {node.name: node.state for node in self.client().nodes().nodes}

    def begin(self, program: Program, world: int, name: str, steps: int, every_s: float = EVERY_S) -> int:
        """A job of ``world`` ranks with an image every so often."""
        work = self.root / name
        work.mkdir()
        spec = JobSpec(
            name=name,
            command=tuple(program.argv(steps)),
            ranks=world,
            devices=world,
            min_devices=1 if world > 1 else 0,
            env=user_environment(self.root),
            workdir=str(work),
            checkpoint_us=int(every_s * SECOND),
            retries=50,
            placement="any",
            grace_us=SECOND,
        )
        self.ids[name] = self.client().submit([spec]).ids[0]
        return self.ids[name]

    def ended(self, job: int) -> bool:
        return self.view(job).state in FINAL

    def layout(self, host: str) -> AgentLayout:
        return AgentLayout(self.state / "hosts" / host)

    def printed(self, job: int) -> Outcome:
        """What the last attempt printed, by rank."""
        logs = self.view(job).logs
        last = max(log.attempt for log in logs)
        return read([_text(Path(log.path)) for log in logs if log.attempt == last])

    def steps(self, job: int) -> int:
        """The last step that the last attempt's ranks have printed."""
        with contextlib.suppress(TideError, ValueError):
            return max((int(lines[-1].split()[1]) for lines in self.printed(job).steps.values()), default=0)
        return 0

    def imaged(self, job: int, more: int = 0) -> bool:
        """Whether an image beyond number ``more`` can be restored, or the job is over."""
        view = self.view(job)
        return view.state in FINAL or any(image.serial > more for image in view.images)

    def copied(self, job: int) -> bool:
        """Whether the newest image lies in a second place, too."""
        view = self.view(job)
        return view.state in FINAL or bool(view.images and view.images[-1].copies)

    # -- processes --------------------------------------------------------------------------------------------------

    def agent(self, host: str) -> int | None:
        """The agent's pid."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self.layout(host).pid.read_text())
            if b"tidewright.agent" in (PROC / str(pid) / "cmdline").read_bytes():
                return pid
        return None

    def ranks(self, host: str, job: int | None = None) -> list[tuple[Path, dict[str, int]]]:
        """Directories of ranks with what lives of them: {"shim", "init", "main"} to pids."""
        found = []
        for shim in sorted(self.layout(host).ranks.glob("[0-9]*.*/*/shim")):
            if job is not None and int(shim.parent.parent.name.partition(".")[0]) != job:
                continue
            pids = {}
            with contextlib.suppress(OSError, ValueError, KeyError):
                pids["shim"] = int(json.loads(shim.read_text())["pid"])
                main = json.loads((shim.parent / "started").read_text())
                pids |= {"main": int(main["pid"]), "init": int(main["init"])}
            ours = self._ours()
            if pids.get("shim") in ours:
                found.append((shim.parent, {name: pid for name, pid in pids.items() if pid in ours}))
        return found

    def _ours(self) -> set[int]:
        """Live processes whose command line or environment names this pool; pids in old files may be anybody's."""
        return set(self.left())

    def everything(self, host: str) -> list[int]:
        """All processes of a host: agent, shims, ranks and whatever they started."""
        agent = [pid] if (pid := self.agent(host)) else []
        return [*agent, *self._below(str(self.layout(host).root))]

    def _below(self, words: str) -> list[int]:
        """Processes that name a directory, and all in the namespaces of those."""
        named = [pid for pid in _pids() if words.encode() in _said(pid) and pid != os.getpid()]
        spaces = {space for pid in named if (space := _space(pid)) not in ("", _space(os.getpid()))}
        return sorted({*named, *(pid for pid in _pids() if _space(pid) in spaces)})

    # -- faults -----------------------------------------------------------------------------------------------------

    def kill_rank(self, host: str, part: str, dice: random.Random, job: int | None = None) -> bool:
        """SIGKILL to the main process, the init or the shim of some rank."""
        found = [pids[part] for _, pids in self.ranks(host, job) if part in pids]
        send(found and [dice.choice(found)], signal.SIGKILL)
        return bool(found)

    def kill_agent(self, host: str) -> bool:
        pid = self.agent(host)
        send([pid] if pid else [], signal.SIGKILL)
        return pid is not None

    def kill_all(self, host: str) -> bool:
        """The host crashes and is back at once."""
        found = self.everything(host)
        send(found, signal.SIGKILL)
        return bool(found)

    def lose(self, host: str, *, disk: bool = False) -> bool:
        """The host is gone, and its disk with it if asked for (what was printed is kept: it is the evidence); ``find``
        brings it back."""
        if host in self.decoys:
            return False
        self.orphan(host)
        root = self.layout(host).root
        wait_until(lambda: not self._struck(host, self._below(str(root))), 20)
        if disk:
            for path in root.iterdir():
                if path not in (self.layout(host).pid, self.layout(host).logs):
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        return True

    def orphan(self, host: str) -> None:
        """The agent is gone and stays away; its ranks live."""
        root = self.layout(host).root
        decoy = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)", str(root)])
        self.decoys[host] = decoy
        wait_until(lambda: str(root).encode() in _command(decoy.pid), 10)
        draft = root / "decoy"
        draft.write_text(str(decoy.pid))
        draft.rename(self.layout(host).pid)  # in one step: an empty file means that no agent is there
        agents = lambda: [pid for pid in self._below(str(root)) if b"tidewright.agent" in _command(pid)]  # noqa: E731
        wait_until(lambda: not self._struck(host, agents()), 20)

    def _struck(self, host: str, pids: Iterable[int]) -> list[int]:
        """Those killed now, the decoy spared."""
        found = [pid for pid in pids if pid != self.decoys[host].pid]
        send(found, signal.SIGKILL)
        return found

    def find(self, host: str) -> None:
        """A lost host is started again."""
        if decoy := self.decoys.pop(host, None):
            decoy.kill()
            decoy.wait()

    def freeze(self, pids: Iterable[int], seconds: float) -> bool:
        """SIGSTOP, and after a while SIGCONT."""
        self.stopped = list(pids)
        if not self.stopped:
            return False
        send(self.stopped, signal.SIGSTOP)
        time.sleep(seconds)
        self.thaw()
        return True

    def thaw(self) -> None:
        send([pid for pid in self.stopped if pid in self._ours()], signal.SIGCONT)
        self.stopped = []

    def kill_criu(self, patience_s: float, delay_s: float = 0.0) -> bool:
        """Wait for a CRIU that saves or restores something of ours, and kill it."""
        end, old = time.monotonic() + patience_s, set(_pids())
        while time.monotonic() < end:
            for pid in set(_pids()) - old:
                said = _command(pid)
                if b"--images-dir\0" in said and str(self.state).encode() in said:
                    time.sleep(delay_s)
                    send([pid], signal.SIGKILL)
                    return True
        return False

    def kill_controller(self) -> bool:
        pid = controller_pid(self.state)
        if pid is None or pid < 0:
            return False
        os.kill(pid, signal.SIGKILL)
        return wait_until(lambda: controller_pid(self.state) is None, 10)

    def restart(self) -> None:
        """``tide up`` where no controller is left, with the hosts that are remembered."""
        if controller_pid(self.state) is None:
            self.tide("up", "--node-timeout", f"{NODE_TIMEOUT_S}s", "--policy", "fifo")

    # -- damage -----------------------------------------------------------------------------------------------------

    def raw_files(self, host: str) -> list[Path]:
        return _files(self.layout(host).images / "work", "pages-*.img")

    def packs(self, host: str) -> list[Path]:
        return _files(self.layout(host).images / "store", "*.pack")

    def manifests(self, host: str) -> list[Path]:
        store = self.layout(host).images / "store"
        return [path for path in _files(store, "*") if "manifest" in str(path.relative_to(store))]

    def truncate(self, path: Path, dice: random.Random) -> bool:
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            os.truncate(path, dice.randrange(size))
            return size > 0
        return False

    def flip(self, path: Path, dice: random.Random) -> bool:
        with contextlib.suppress(OSError), path.open("r+b") as file:
            at = dice.randrange(path.stat().st_size)
            file.seek(at)
            old = file.read(1)
            file.seek(at)
            file.write(bytes([old[0] ^ 1 << dice.randrange(8)]))
            return True
        return False

    def small_disk(self, host: str, size_mb: int) -> None:
        """The host's directory is a file system of its own; before ``up``."""
        root = self.state / "hosts" / host
        root.mkdir(parents=True, mode=0o700)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0700", "tidewright-test", str(root)], check=False
        )
        assert done.returncode == 0, "a tmpfs cannot be mounted here"
        self.mounted.append(root)

    def fill(self, host: str) -> Path:
        """Use up what is left of its disk; the file that does it."""
        path = self.layout(host).root / "filler"
        with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        return path

    # -- the end ----------------------------------------------------------------------------------------------------

    def verdict(self, job: int, plain: Outcome) -> list[str]:
        """What is wrong with an ended job: wrong numbers, a log doubled or with holes, or a failure that says nothing."""
        view = self.view(job)
        if view.state == "completed":
            return differences(plain, self.printed(job))
        if view.state == "failed" and owns_up(view):
            return []
        return [f"{view.state} ({view.exit_code}): {view.why}"]

    def left(self) -> list[int]:
        """Every process of this pool that lives, decoys left out."""
        decoys = {decoy.pid for decoy in self.decoys.values()}
        return [pid for pid in self._below(str(self.state)) if pid not in decoys and pid != os.getpid()]

    def clean(self) -> None:
        """Stop the daemons, kill by id whatever is left, give back mounts."""
        self.thaw()
        for host in list(self.decoys):
            self.find(host)
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.tide("down")
        send(self.left(), signal.SIGKILL)
        wait_until(lambda: not self.left(), 5)
        for group in self.groups():
            send(grouped([str(group)]), signal.SIGKILL)
            wait_until(lambda group=group: remove((str(group),)), 5)  # type: ignore[misc]
        for path in self.mounted:
            subprocess.run(["umount", "-l", str(path)], check=False)

    def story_of(self, job: int) -> str:
        view: JobView = self.view(job)
        return "\n".join(f"{line.at / 1e6:.2f} {line.what}: {line.why}" for line in view.story)


def owns_up(view: JobView) -> bool:
    """Whether the last words on a failed job name an image that it had, and how much of its work was lost."""
    had = {image.serial for image in view.images}
    for line in view.story[:-1]:  # the last one says what is to be judged
        had |= {one.args["serial"] for one in within(line.cause) if one.code in GOOD_IMAGE}
    named, amount = set(), False
    for one in within(view.cause):
        said = NAMED_IMAGE.findall(one.text) if one.code == Code.REPORTED else []
        named |= {int(serial) for serial in (*said, one.args.get("serial", 0))} - {0}
        amount |= one.code in AMOUNT
    return bool(named) and named <= had and amount


def within(cause: object) -> Iterator[CauseView]:
    """A cause and every cause among its arguments."""
    if isinstance(cause, CauseView):
        yield cause
        for value in cause.args.values():
            for inner in value if isinstance(value, tuple) else (value,):
                yield from within(inner)


def says(view: JobView, code: Code) -> bool:
    """Whether the history of a job has this code."""
    return any(one.code == code for line in view.story for one in within(line.cause))


def plain(program: Program, world: int, steps: int, root: Path) -> Outcome:
    """An uninterrupted run without anything of ours."""
    return run_plain(program, world, root / f"plain-{program.name}-{world}-{steps}", steps)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _files(root: Path, pattern: str) -> list[Path]:
    return sorted(path for path in root.rglob(pattern) if path.is_file() and path.stat().st_size)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _said(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        if b") Z " not in (PROC / str(pid) / "stat").read_bytes():
            return (PROC / str(pid) / "cmdline").read_bytes() + (PROC / str(pid) / "environ").read_bytes()
    return b""


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes()
    return b""


def _space(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(PROC / str(pid) / "ns" / "pid")
    return ""
