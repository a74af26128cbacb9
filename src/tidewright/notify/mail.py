"""Mail over SMTP (RFC 5321): with TLS, or to this machine alone."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import smtplib
import ssl
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from urllib.parse import unquote, urlsplit

from ..base.errors import UsageError
from .closing import MOST_S, closed_after
from .outbox import Notification

TIMEOUT_S = 20.0
PORTS = {"smtp": 587, "smtps": 465}


SETTINGS = ("smtp", "smtp_password_file", "mail_from", "mail_domain")


@dataclass(frozen=True)
class MailSettings:
    """``smtp``: smtp[s]://[USER@]HOST[:PORT], empty: no mails; ``smtp_password_file``: of mode 0600; ``mail_from``: the sender's
    address; ``mail_domain``: completes users whose address is a name alone."""

    smtp: str = ""
    smtp_password_file: str = ""
    mail_from: str = ""
    mail_domain: str = ""

    @property
    def argv(self) -> list[str]:
        """The same as options of the process that sends mails."""
        given = ((f"--{name.replace('_', '-')}", getattr(self, name)) for name in SETTINGS)
        return [word for option, value in given if value for word in (option, value)]


@dataclass(frozen=True)
class SmtpServer:
    """Where mail is handed in. ``scheme`` smtps: TLS from the first byte; smtp: STARTTLS, without which only a server on this
    machine is spoken to."""

    scheme: str
    host: str
    port: int
    user: str = ""

    @property
    def is_local(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_smtp(url: str) -> SmtpServer:
    """``smtp[s]://[USER@]HOST[:PORT]``. Raises UsageError."""
    remedy = "write it like smtp://mail.example.org:587 or smtps://robot@mail.example.org"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise UsageError(f"smtp: {url!r} is no URL", remedy) from None
    if parts.scheme not in PORTS or not host or parts.path.strip("/") or parts.query:
        raise UsageError(f"smtp: {url!r} is no SMTP server", remedy)
    if parts.password is not None:
        raise UsageError(
            "smtp: a password does not belong into the URL", "put it into a file of mode 0600: smtp_password_file"
        )
    return SmtpServer(parts.scheme, host, port or PORTS[parts.scheme], unquote(parts.username or ""))


def completed(address: str, domain: str) -> str:
    """A name without a domain is one of ``domain`` (empty: the mail server knows)."""
    return address if "@" in address or not domain else f"{address}@{domain}"


def read_password(file: str) -> str:
    """From a file that only its owner can read, by a link too (secrets of Kubernetes are links). Raises UsageError, OSError."""
    if not file:
        return ""
    with open(file, "rb") as opened:
        found = os.fstat(opened.fileno())
        if found.st_mode & 0o077 or found.st_uid not in (0, os.geteuid()):
            raise UsageError(f"others can read {file}", f"chmod 600 {file}, as its owner")
        return opened.read(4096).decode().rstrip("\n")


class Mailer:
    """``sender``: the address in From; ``domain`` completes names."""

    def __init__(self, server: SmtpServer, sender: str, domain: str, password_file: str) -> None:
        self._server, self._sender, self._domain, self._password_file = server, sender, domain, password_file

    def send(self, message: Notification) -> None:
        """Hand a message in. Raises OSError, smtplib.SMTPException or UsageError."""
        server = self._server
        context = ssl.create_default_context()
        smtp = (
            smtplib.SMTP_SSL(timeout=TIMEOUT_S, context=context)
            if server.scheme == "smtps"
            else smtplib.SMTP(timeout=TIMEOUT_S)
        )
        smtp._host = server.host  # type: ignore[attr-defined]  # what certificates are checked for; connect() does not set it
        with closed_after(lambda: smtp.sock, MOST_S):
            try:
                smtp.connect(server.host, server.port)
                self._hand_in(smtp, message, context)
                with contextlib.suppress(OSError, smtplib.SMTPException):
                    smtp.quit()  # it is accepted, whatever the server says to that
            finally:
                smtp.close()

    def _hand_in(self, smtp: smtplib.SMTP, message: Notification, context: ssl.SSLContext) -> None:
        if self._server.scheme == "smtp":
            smtp.ehlo()
            if smtp.has_extn("starttls"):
                smtp.starttls(context=context)
                smtp.ehlo()
            elif not self._server.is_local:
                raise smtplib.SMTPNotSupportedError("the server offers no TLS, and is not on this machine")
        if self._server.user:
            smtp.login(self._server.user, read_password(self._password_file))
        smtp.send_message(self._letter(message))

    def _letter(self, message: Notification) -> EmailMessage:
        letter = EmailMessage()
        letter["From"], letter["To"] = self._sender, completed(message.target, self._domain)
        letter["Subject"] = f"[tide] {message.subject}"
        letter["Date"] = formatdate(message.created / 1e6, localtime=True)
        letter["Message-ID"] = f"<{message.id}@tidewright>"
        letter["Auto-Submitted"] = "auto-generated"  # RFC 3834: no out-of-office answers
        letter["X-Tide-Job"], letter["X-Tide-Event"] = str(message.job), message.kind
        letter.set_content(message.body)
        return letter


def is_permanent(error: Exception) -> bool:
    """Whether another try would fail in the same way: the server has refused the address or the message (5yz, RFC 5321)."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(500 <= code < 600 for code, _ in error.recipients.values())
    return isinstance(error, smtplib.SMTPSenderRefused | smtplib.SMTPDataError) and 500 <= error.smtp_code < 600
