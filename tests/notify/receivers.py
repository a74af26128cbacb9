"""A mail server and a receiver of webhooks, for real, on ports of this machine."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from typing import Any

from aiosmtpd.controller import Controller

from tests.ports import free_port


class MailBox:
    """What an SMTP server has taken. ``refuse``: its answers to the next recipients, first to last."""

    def __init__(self) -> None:
        self.letters: list[Message] = []
        self.refuse: list[str] = []
        self.farewell = "221 Bye"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:  # noqa: N802
        if self.refuse:
            return self.refuse.pop(0)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.letters.append(message_from_bytes(envelope.content))
        return "250 OK"

    async def handle_QUIT(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        return self.farewell

    @property
    def subjects(self) -> list[str]:
        return [str(letter["Subject"]) for letter in self.letters]


@contextmanager
def mail_server() -> Iterator[tuple[MailBox, str]]:
    """(its box, its URL)."""
    box = MailBox()
    port = free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield box, f"smtp://127.0.0.1:{port}"
    finally:
        controller.stop()


class Hook:
    """What a receiver was sent: (headers, body). ``answers``: status codes of the next answers; then 204."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.headers: dict[str, str] = {}


@contextmanager
def receiver() -> Iterator[tuple[Hook, str]]:
    """(what it got, its URL)."""
    hook = Hook()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            hook.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(hook.answers.pop(0) if hook.answers else 204)
            for name, value in hook.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hook, f"http://127.0.0.1:{server.server_port}/hook?key=secret"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
