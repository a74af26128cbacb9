"""Notifications of real jobs to a real mail server and a real receiver, over kills of whatever sends them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.notify.receivers import Hook, MailBox, mail_server, receiver
from tidewright.model.job import JobSpec
from tidewright.model.notify import Notify

from .test_processes import Site

pytestmark = pytest.mark.processes


class Notified(Site):
    """With a mail server and a receiver of webhooks."""

    def __init__(self, state: Path, box: MailBox, hook: Hook, url: str) -> None:
        super().__init__(state)
        self.box, self.hook, self.url = box, hook, url

    def notifier(self) -> list[psutil.Process]:
        """The processes that send for this state directory."""
        assert self.daemon is not None
        children = psutil.Process(self.daemon.pid).children()
        return [one for one in children if "tidewright.notify" in one.cmdline()]

    def run(self, script: str, name: str) -> int:
        notify = Notify(("begin", "end", "fail"), ("ann",), (self.url,))
        spec = JobSpec(name=name, command=("/bin/sh", "-c", script), env={"PATH": os.environ["PATH"]}, notify=notify)
        reply = self.client().submit([spec])
        assert not reply.warnings
        return reply.ids[0]

    def hooked(self, job: int) -> list[str]:
        """Kinds, one for each id: one that was accepted just before a kill comes again, under the same id."""
        found = {headers["webhook-id"]: json.loads(body) for headers, body in self.hook.got}
        return [body["type"] for body in found.values() if body["job"]["id"] == job]

    def mailed(self) -> list[str]:
        """What mails say that jobs did, one for each id."""
        found = {letter["Message-ID"]: str(letter["Subject"]) for letter in self.box.letters}
        return sorted(subject.partition(") ")[2] for subject in found.values())


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[Notified]:
    with mail_server() as (box, smtp), receiver() as (hook, url):
        found = Notified(tmp_path / "state", box, hook, url)
        found.state.mkdir(mode=0o700)
        config = found.state / "config.yaml"
        config.write_text(f"smtp: {smtp}\nmail_domain: example.org\n")
        config.chmod(0o600)
        found.up()
        yield found
        found.down()


def test_each_message_comes_over_kills_of_sender_and_controller(notified: Notified) -> None:
    go = notified.state / "go"
    job = notified.run(f"while [ ! -e {go} ]; do sleep 0.05; done; exit 3", "first")
    notified.until(lambda: notified.hooked(job) == ["job.begin"] and len(notified.box.letters) == 1)
    (sender,) = notified.notifier()
    sender.send_signal(signal.SIGKILL)
    notified.kill("controller")
    go.touch()  # it ends while neither is there
    notified.up()
    other = notified.run("true", "second")
    notified.until(lambda: len(notified.hooked(job)) == 2 and len(notified.hooked(other)) == 2)
    notified.until(lambda: len(notified.mailed()) == 4)
    assert notified.hooked(job) == ["job.begin", "job.fail"] and notified.hooked(other) == ["job.begin", "job.end"]
    assert notified.mailed() == ["has begun", "has begun", "has completed", "has failed"]
    assert {letter["To"] for letter in notified.box.letters} == {"ann@example.org"}
    shown = notified.client().job(job).spec
    assert shown is not None and shown.notify is not None and "secret" not in shown.notify.webhooks[0]
    assert b"key=secret" not in b"".join(notified.client().journal()), "as little as the environment"


def test_a_job_that_came_and_ended_while_nothing_was_heard_of_it_is_said_after_a_clean_restart(
    notified: Notified,
) -> None:
    first = notified.run("true", "first")
    notified.until(lambda: len(notified.hooked(first)) == 2)
    (sender,) = notified.notifier()
    sender.send_signal(signal.SIGSTOP)
    unseen = notified.run("true", "unseen")
    assert notified.client().wait(unseen, 20).exit_code == 0
    assert notified.daemon is not None
    notified.client().shutdown()  # with a snapshot: the turns are not replayed
    notified.daemon.wait(20)
    sender.send_signal(signal.SIGKILL)
    notified.up()
    notified.until(lambda: notified.hooked(unseen) == ["job.begin", "job.end"])
    assert notified.hooked(first) == ["job.begin", "job.end"]


@pytest.mark.full
def test_a_dead_receiver_holds_nothing_up_and_the_sender_ends_with_its_controller(notified: Notified) -> None:
    notified.hook.answers = [500] * 50
    job = notified.run("true", "first")
    assert notified.client().wait(job, 20).exit_code == 0
    notified.until(lambda: notified.hook.got and len(notified.mailed()) == 2)
    (sender,) = notified.notifier()
    notified.kill("controller")
    psutil.wait_procs([sender], 10)
    assert not sender.is_running()
    notified.up()
