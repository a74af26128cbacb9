"""Three machines in namespaces: a gang moves from machine to machine, and outlives one of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.criu_here import criu_here
from tidewright.model.job import JobSpec
from tidewright.wire.api import JobView

from . import machines
from .machines import Site

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(machines.possible()), reason=machines.possible() or "-"),
    pytest.mark.skipif(isinstance(criu_here(), str), reason="no CRIU; tide setup criu"),
]
STEPS = 300
SCRIPT = """
import hashlib, json, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(100 + dist.get_rank())
digest = hashlib.sha256()
for step in range(int(sys.argv[1])):
    loss = model(torch.randn(16, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    digest.update(shown.numpy().tobytes())
    print("step", step, flush=True)
    with open(sys.argv[3], "a") as file:  # beyond every image: shows what is done twice
        file.write(f"{dist.get_rank()}.{step}\\n")
    time.sleep(float(sys.argv[4]))
for value in model.parameters():
    digest.update(value.detach().numpy().tobytes())
digest.update(torch.get_rng_state().numpy().tobytes())
if dist.get_rank() == 0:
    with open(sys.argv[2], "w") as file:
        json.dump({"hash": digest.hexdigest()}, file)
"""
"""Rests at every step as long as a file says; the hash is over losses, weights and random state."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path, machines=3, slots=1)
    yield found
    found.close()


def train(site: Site, name: str, rest_s: float, **more: object) -> JobSpec:
    """Two ranks, each on a machine of its own; rank 0 writes into a directory that its machine shares with nobody."""
    out = site.own / "work" / f"{name}.json"
    command = (sys.executable, "-c", SCRIPT, str(STEPS), str(out), str(site.shared / name), str(rest_s))
    env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    return JobSpec(
        name=name,
        command=command,
        ranks=2,
        devices=2,
        placement="any",
        env=env,
        workdir=str(site.own / "work"),
        **more,  # type: ignore[arg-type]
    )


def result(site: Site, name: str) -> dict[str, object]:
    """What rank 0 wrote, on whichever machine it ended."""
    for machine in site.machines:
        if f"{name}.json" in machine.run("ls", str(machine.own / "work")).split():
            found: dict[str, object] = json.loads(machine.run("cat", str(machine.own / "work" / f"{name}.json")))
            return found
    raise AssertionError(site.story())


def steps_shown(site: Site, job: int) -> list[int]:
    """Step numbers in rank 0's log, as its last machine has it."""
    (path,) = [log.path for log in site.job(job).logs if log.rank == 0 and log.attempt == site.job(job).attempt]
    for machine in site.machines:
        shown = machine.run("sh", "-c", f"cat {path} 2>/dev/null || true").split("step ")[1:]
        if shown and int(shown[-1]) == STEPS - 1:
            return [int(number) for number in shown]
    raise AssertionError(site.story())


def copied_since(view: JobView, serial: int) -> bool:
    """Whether there is a newer image than that, with a copy."""
    return any(image.serial > serial and image.copies for image in view.images)


@pytest.mark.full
def test_a_gang_moves_between_machines_and_outlives_one(site: Site) -> None:
    (alone,) = site.client().submit([train(site, "alone", 0.0, checkpoint_us=-1)]).ids
    assert site.client().wait(alone, 100).exit_code == 0, site.story()
    (job,) = site.client().submit([train(site, "moved", 0.08, checkpoint_us=1_500_000)]).ids
    site.until(lambda: len(site.where(job)) == 2)
    first = site.where(job)
    (third,) = {machine.name for machine in site.machines} - set(first)
    site.until(lambda: bool(site.job(job).images))
    site.tide("migrate", str(job), "--to", first[0], "--to", third, "--wait", "--timeout", "60s")
    assert site.where(job) == sorted([first[0], third])
    victim = next(machine for machine in site.machines if machine.name == third)
    newest = site.job(job).images[-1].serial
    site.until(lambda: copied_since(site.job(job), newest) or site.job(job).state == "completed")
    assert site.job(job).state == "running", "too fast for this test; give it more steps"
    victim.kill()
    site.until(lambda: site.where(job) == first)
    assert site.client().wait(job, 100).exit_code == 0, site.story()
    view = site.job(job)
    assert view.attempt == 2 and any(line.cause.code == "RunsFromImage" for line in view.story)
    assert result(site, "moved")["hash"] == result(site, "alone")["hash"]
    done = (site.shared / "moved").read_text().split()
    twice = [int(line.partition(".")[2]) for line in dict.fromkeys(done) if done.count(line) > 1]
    assert min(twice) > 0 and len(twice) <= STEPS, f"done again: {twice}\n{site.story()}"
    assert steps_shown(site, job) == list(range(STEPS)), "its log is not that of one uninterrupted run"
