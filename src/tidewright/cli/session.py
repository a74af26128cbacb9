"""What every command shares: the controller it connects to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..base.errors import NotFound

if TYPE_CHECKING:
    from ..wire.client import Client


@dataclass
class Session:
    """``url`` is None when the controller is reached through ``state``'s unix socket."""

    state: Path
    url: str | None = None
    token_file: Path | None = None
    ca: str | None = None
    """Certificates (PEM) that the controller's is verified by; None: TIDE_CA, else the system's."""

    @staticmethod
    def of(state: str | None, url: str | None, token_file: str | None, ca: str | None = None) -> Session:
        """From the options of the command line; without ``state`` and ``url``, TIDE_URL with TIDE_TOKEN_FILE, else TIDE_STATE,
        else the XDG default."""
        from ..wire.client import default_state

        if not state and not url:
            url, token_file = os.environ.get("TIDE_URL") or None, token_file or os.environ.get("TIDE_TOKEN_FILE")
        folder = Path(state).expanduser().absolute() if state else default_state().absolute()
        return Session(folder, url, Path(token_file) if token_file else None, ca)

    def client(self, timeout: float = 30.0) -> Client:
        """A client of the session's controller, which waits so many seconds for an answer. Raises NotFound when the token file
        is missing."""
        from ..wire.client import Client

        return Client(self.state, url=self.url, token=self._token(), ca=self.ca, timeout=timeout)

    def _token(self) -> str | None:
        if self.url is None:
            return None
        path = self.token_file or self.state / "token"
        try:
            return path.read_text().strip()
        except OSError as error:
            raise NotFound(
                f"cannot read the token for {self.url}: {path}: {error.strerror}",
                "give the controller's token file with --token-file",
            ) from None


pass_session = click.make_pass_decorator(Session)
