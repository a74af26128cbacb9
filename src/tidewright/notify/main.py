"""The process: ``python -m tidewright.notify --state DIR``, started by the controller and ended with it."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..base.errors import TideError, UsageError
from ..wire.client import Client
from ..wire.log_limit import LogLimit
from ..wire.state_files import open_own
from .mail import Mailer, parse_smtp, read_password
from .outbox import Outbox
from .sender import Channel, Sender
from .watcher import Watcher
from .webhook import WebhookSender, load_key

LOCK = "notify.lock"
PARENT_S = 0.5


def now_us() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def channels(given: argparse.Namespace) -> dict[str, Channel]:
    """How messages are sent. Raises UsageError."""
    found: dict[str, Channel] = {"webhook": WebhookSender(load_key(given.state), given.loopback).send}
    if given.smtp:
        try:
            read_password(given.smtp_password_file)
        except (OSError, UsageError) as error:
            logging.error("mails cannot be sent: %s", error)
        sender = given.mail_from or f"tide@{os.uname().nodename}"
        found["mail"] = Mailer(parse_smtp(given.smtp), sender, given.mail_domain, given.smtp_password_file).send
    return found


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tidewright.notify", description="Sends notifications about jobs.")
    parser.add_argument("--state", type=Path, required=True, help="state directory of the controller")
    parser.add_argument("--smtp", default="", metavar="URL", help="mail server: smtp[s]://[USER@]HOST[:PORT]")
    parser.add_argument("--smtp-password-file", default="", metavar="FILE", help="its password, mode 0600")
    parser.add_argument("--mail-from", default="", metavar="ADDRESS", help="sender of mails")
    parser.add_argument("--mail-domain", default="", metavar="DOMAIN", help="of users whose address is a name alone")
    parser.add_argument(
        "--parent", type=int, default=0, metavar="PID", help="end with this process, which has started it"
    )
    parser.add_argument("--loopback", action="store_true", help="webhooks may reach this machine")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    given = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger().handlers[0].addFilter(LogLimit())
    parent = given.parent or os.getppid()
    lock = open_own(given.state / LOCK, os.O_RDWR | os.O_CREAT)
    while not _locked(lock):  # another one sends, and is about to end with its controller
        if os.getppid() != parent:
            return 0
        time.sleep(PARENT_S)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        ways = channels(given)
        Outbox(given.state).close()
    except TideError as error:
        logging.error("%s", error)
        return error.exit_code
    state, failed = given.state, threading.Event()

    def watch() -> None:
        Watcher(Outbox(state), lambda: Client(state=state), now_us).run(stop)

    def send() -> None:
        Sender(Outbox(state), ways, now_us).run(stop)

    for part in (watch, send):
        threading.Thread(target=_guarded, args=(part, stop, failed), daemon=True).start()
    while not stop.wait(PARENT_S) and os.getppid() == parent:
        pass
    logging.shutdown()
    os._exit(int(failed.is_set()))  # what is being sent is not waited for: it may take a minute, and is sent again


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _guarded(part: Callable[[], None], stop: threading.Event, failed: threading.Event) -> None:
    """A part that fails ends the process: the controller starts another one."""
    try:
        part()
    except BaseException:
        logging.exception("the process ends")
        failed.set()
        stop.set()
