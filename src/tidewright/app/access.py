"""What a start is refused for before anything is started: an unsafe address, an account that jobs cannot run as."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..agent.processes.accounts import lookup
from ..base.errors import UsageError
from ..live.api import access
from .remembered import NONE
from .settings import Settings


def check_options(settings: Settings, options: Mapping[str, str]) -> tuple[str, bool]:
    """``check_access`` of these options over config.yaml; the address that will be listened on, and whether with TLS."""

    def chosen(name: str) -> str:
        value = options.get(name, getattr(settings, name))
        return "" if value == NONE else str(value)

    tls = chosen("tls_cert"), chosen("tls_key")
    check_access(chosen("listen"), tls, chosen("jobs_as"))
    return chosen("listen"), any(tls)


def check_access(listen: str, tls: tuple[str, str], jobs_as: str) -> None:
    """Raise UsageError for a combination that would be unsafe or cannot work."""
    access.check(listen, tls, jobs_as)
    if jobs_as and lookup(jobs_as).uid != os.geteuid() != 0:
        raise UsageError(
            f"--jobs-as {jobs_as}: only root can run jobs as another user",
            "start the controller as root, or leave it out",
        )
