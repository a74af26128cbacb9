"""STATE/config.yaml: what a controller is started with. All mistakes are reported at once with file and line.

Every room's settings stay in the room's own class; this file only fills them. Durations and sizes are written with
units, under the field's name without ``_us``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..agent.processes.log_cap import LIMIT_BYTES
from ..base.errors import UsageError
from ..base.units import SECOND, parse_bytes, parse_duration
from ..engine.settings import EngineSettings, live_settings
from ..live.controller.forecast_probe import EVERY_US
from ..live.controller.rate_probe import EVERY_US as RATES_EVERY_US
from ..model.rate import RateSettings
from ..notify.mail import SETTINGS as MAIL_SETTINGS
from ..notify.mail import MailSettings, parse_smtp
from ..sim.rate_files import PACKAGED, load_rates
from ..wire.state_files import name_of
from .jobspec import fields, located
from .jobspec.located import Mistakes, Scalar, Sequence, Value

NAME = "config.yaml"
_REMEDY = "correct the file, or move it away for the defaults; the keys are in docs/cli.md"


@dataclass(frozen=True)
class Settings:
    """``policy`` may carry settings of its own (``las:round=6m``); ``listen`` HOST:PORT serves TCP as well, with TLS by
    ``tls_cert`` and ``tls_key`` (PEM files); ``jobs_as`` is the unix account that jobs run as (empty: our own); ``slots``
    is how many CPU slots stand in where there is no GPU (0: one per core); ``backend`` names the device layer;
    ``images`` is an fsspec URL that takes copies of job images; ``image_quota`` is how many bytes of images a node keeps at
    most (0: as many as its disk takes); ``log_limit`` is how much of a rank's log is kept (0: all of it);
    ``rates`` names a table of how fast jobs run on which kind of device (docs/rates.md);
    ``node_timeout_us``: a node of several that is away for longer is down, and its jobs go on elsewhere;
    ``forecast_check_us``: how often at most the controller asks itself when a waiting job starts, to count how often that holds
    (0: never); ``rate_check_us``: how often it reads what jobs report of their samples, to learn rates (0: never);
    ``mail``: where notifications are mailed."""

    policy: str = "sla"
    listen: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    jobs_as: str = ""
    slots: int = 0
    backend: str = "auto"
    images: str = ""
    image_quota: int = 0
    log_limit: int = LIMIT_BYTES
    node_timeout_us: int = 30 * SECOND
    rates: str = ""
    forecast_check_us: int = EVERY_US
    rate_check_us: int = RATES_EVERY_US
    mail: MailSettings = field(default_factory=MailSettings)
    engine: EngineSettings = field(default_factory=live_settings)


def load_settings(state: Path) -> Settings:
    """The settings of a state directory; the defaults when it has no config.yaml. Raises UsageError with every mistake."""
    path = state / NAME
    if not path.exists():
        return Settings()
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise UsageError(
            f"{path} can be changed by others (it belongs to {name_of(found.st_uid)}, mode {found.st_mode & 0o777:o})",
            f"see what it says, then make it yours: chown and chmod 600 {path}",
        )
    return parse_settings(located.read_text(path), str(path))


def parse_settings(text: str, file: str) -> Settings:
    """The settings in a YAML text; ``file`` is its name in messages."""
    mistakes = Mistakes(file)
    documents = located.parse(text, mistakes)
    if len(documents) > 1:
        mistakes.add(documents[1].line, "a second document; settings are one")
    values: dict[str, Any] = {}
    for document in documents[:1]:
        if isinstance(document, located.Mapping):
            values = _read(document, mistakes, _TOP | {"rates": _rates_beside(file)}, "")
        else:
            mistakes.add(document.line, "settings are written as `key: value` lines")
    mistakes.check(_REMEDY)
    engine = values.pop("engine", {})
    if "rates" in values:
        values["rates"], engine["rates"] = values["rates"]
    values["mail"] = MailSettings(**{name: values.pop(name) for name in MAIL_SETTINGS if name in values})
    for name in ("node_timeout", "forecast_check", "rate_check"):
        if name in values:
            values[f"{name}_us"] = values.pop(name)
    return Settings(**values, engine=live_settings(**engine))


def _engine(value: Value, mistakes: Mistakes) -> dict[str, Any]:
    if not isinstance(value, located.Mapping):
        mistakes.add(value.line, "engine: settings are written as `key: value` lines")
        return {}
    # Under its own name, or under the one that it is stored by and earlier versions had for it.
    known = {
        name.removesuffix("_us"): one
        for one in msgspec.structs.fields(EngineSettings)
        for name in (one.name, one.encode_name)
        if one.name != "rates"  # a file of its own
    }
    readers = {key: _reader(one.name, one.default) for key, one in known.items()}
    read = _read(value, mistakes, readers, "engine.")
    return {known[key].name: found for key, found in read.items()}


def _reader(name: str, default: Any) -> Callable[[Value], Any]:
    if isinstance(default, tuple):
        return lambda value: tuple(_text(item, str) for item in _items(value))
    if name.endswith("_us"):
        return lambda value: _text(value, parse_duration)
    return lambda value: _text(value, fields.whole)


def _items(value: Value) -> Iterable[Value]:
    return value.items if isinstance(value, Sequence) else (value,)


def _text(value: Value, read: Callable[[str], Any]) -> Any:
    if not isinstance(value, Scalar) or value.null:
        raise UsageError("a single value is wanted here")
    return read(value.text)


def _read(
    document: located.Mapping, mistakes: Mistakes, readers: dict[str, Callable[[Value], Any]], where: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in document.entries.items():
        if where == "" and key == "engine":
            found[key] = _engine(value, mistakes)
        elif key not in readers:
            mistakes.unknown(document.key_lines[key], "key", where + key, [where + known for known in readers])
        else:
            try:
                found[key] = readers[key](value)
            except UsageError as error:
                text = f"{error.message}; {error.remedy}" if error.remedy else error.message
                mistakes.add(value.line, f"{where}{key}: {text}")
    return found


def _rates_beside(file: str) -> Callable[[Value], Any]:
    """Reads the name of a table of rates, and what it says, so that a mistake has the line of its key. A relative path is one
    beside the settings, wherever the controller is started; the name of a packaged table is no path."""

    def read(text: str) -> tuple[str, RateSettings]:
        name = text if not text or text in PACKAGED else str(Path(file).absolute().parent / text)
        return name, load_rates(name) if name else RateSettings()

    return lambda value: _text(value, read)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise UsageError(f"not HOST:PORT: {text!r}", "write it like 127.0.0.1:7700")
    return text


def _smtp(text: str) -> str:
    parse_smtp(text)
    return text


_TOP: dict[str, Callable[[Value], Any]] = {
    "policy": lambda value: _text(value, str),
    "listen": lambda value: _text(value, _address),
    "tls_cert": lambda value: _text(value, str),
    "tls_key": lambda value: _text(value, str),
    "jobs_as": lambda value: _text(value, str),
    "slots": lambda value: _text(value, fields.whole),
    "backend": lambda value: _text(value, str),
    "images": lambda value: _text(value, str),
    "image_quota": lambda value: _text(value, parse_bytes),
    "log_limit": lambda value: _text(value, fields.log_limit),
    "node_timeout": lambda value: _text(value, parse_duration),
    "forecast_check": lambda value: _text(value, parse_duration),
    "rate_check": lambda value: _text(value, parse_duration),
    "smtp": lambda value: _text(value, _smtp),
    "smtp_password_file": lambda value: _text(value, str),
    "mail_from": lambda value: _text(value, str),
    "mail_domain": lambda value: _text(value, str),
    "engine": lambda value: None,
}


def overridden(settings: Settings, **given: Any) -> Settings:
    """``settings`` with the command line's values, where it gave any."""
    return dataclasses.replace(settings, **{name: value for name, value in given.items() if value not in (None, "")})
