"""``tide down``: stops the daemons, not the jobs."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import click

from ...base.errors import Conflict, NotFound, TideError, Unreachable, UsageError, WorldError
from ...base.units import agreeing, counted
from ...wire.client import Client
from .. import output as out
from ..progress import Bar, progress
from ..session import Session, pass_session

CONNECTIONS = 32  # a turn takes some 10 ms, however many ask
JOBS_LIMIT_S = 120.0
"""How long --jobs waits for cancelled jobs; longer than any sensible grace."""


@click.command("down", short_help="Stop Tidewright; jobs run on.")
@click.option("--jobs", is_flag=True, help="End every service and job first, and wait until they have ended.")
@pass_session
def command(session: Session, jobs: bool) -> int:
    """Stop the controller and the agent of this machine.

    Jobs run on without them, and the next `tide up` takes them over; --jobs ends them all first, and services with
    them: otherwise their replicas are made anew.
    """
    from ...app.start import controller_pid

    client = session.client()
    if session.url is None and controller_pid(session.state) is None:
        click.echo(_end_left_agents(session.state))
        return 0
    if jobs:
        _cancel_all(session, client)
    left = _shut_down(session, client)
    click.echo("tidewright is down")
    if left:
        some = f"{counted(left, 'job')} {agreeing(left, 'runs on or waits', 'run on or wait')}"
        click.echo(f"{some}; tide up takes over again, tide down --jobs (after tide up) ends them")
    return 0


def _end_left_agents(state: Path) -> str:
    """End the agents of a controller that has ended without them, as where its journal was removed; returns what was done."""
    from ...app.start import agents_left, end_agents

    pids = agents_left(state)
    if not pids:
        return f"nothing runs on {state}"
    end_agents(state)
    return f"no controller runs on {state}; ended its {agreeing(len(pids), 'agent', 'agents')} (pid {', '.join(map(str, pids))})"


def _shut_down(session: Session, client: Client) -> int:
    """End the daemons; returns how many jobs are left. A controller of this machine that does not answer is ended by pid."""
    from ...app.start import controller_pid, end_agents, end_by_pid, wait_until_down

    left, mute = 0, False
    try:
        left = len(client.jobs().jobs)
        client.shutdown()
    except (Unreachable, WorldError) as error:
        if session.url is not None:
            raise
        why = error.args[0].partition("; ")[0]  # without the advice to call what runs here
        out.note(f"{why}; ended by pid {end_by_pid(session.state)}")
        mute = True
    if session.url is None:
        with progress("stopping") as bar:
            if not wait_until_down(session.state, bar.update):
                pid = controller_pid(session.state)
                raise UsageError(
                    f"the controller (pid {pid}) has not ended yet",
                    f"look at {session.state}/controller.log; kill -9 {pid} harms neither the journal nor jobs",
                )
    if mute:
        end_agents(session.state)
    return left


def _cancel_all(session: Session, client: Client) -> None:
    for service in client.services().services:
        if service.state != "deleting":
            with contextlib.suppress(NotFound):  # gone by itself meanwhile
                client.delete_service(service.name)
    live = client.jobs().jobs
    waiting, running = ([job.id for job in live if bool(job.held) is held] for held in (False, True))
    with progress(f"ending {counted(len(live), 'job')}", len(live)) as bar:
        _ask_each(session, waiting, bar)  # first, or one of them would start where another has just ended
        _ask_each(session, running, bar)
        deadline = time.monotonic() + JOBS_LIMIT_S
        while (left := len(client.jobs().jobs)) and time.monotonic() < deadline:
            bar.update(len(live) - left)
            time.sleep(0.1)
    if left:
        raise UsageError(
            f"{counted(left, 'job')} {agreeing(left, 'has', 'have')} not ended after {JOBS_LIMIT_S:.0f} s",
            "see tide ps; then tide down --jobs again",
        )
    click.echo(f"{counted(len(live), 'job')} ended")


def _ask_each(session: Session, jobs: list[int], bar: Bar) -> None:
    """Cancel jobs over a few connections: the controller takes what comes at the same time in one turn."""
    clients: SimpleQueue[Client] = SimpleQueue()
    for _ in range(CONNECTIONS):
        clients.put(session.client())

    def cancel(job: int) -> None:
        client = clients.get()
        try:
            client.cancel(job)
        except (NotFound, Conflict):  # it has ended by itself
            pass
        except TideError as error:
            out.note(f"job {job}: {error.args[0]}")
        finally:
            clients.put(client)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done, _ in enumerate(pool.map(cancel, jobs), 1):
            bar.update(done, f"cancelling {counted(len(jobs), 'job')}")
    bar.update(0, f"ending {counted(len(jobs), 'job')}")
    while not clients.empty():
        clients.get().close()
