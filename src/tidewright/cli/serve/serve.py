"""``tide serve``: services, that is so many replicas of a server, kept running."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ...base.errors import NotFound, UsageError
from ...base.units import MINUTE, counted
from ...model.service import ServiceSpec
from ...wire.services import ReplicaView, ServiceView
from .. import output as out
from ..jobs import run
from ..output import Column
from ..session import Session, pass_session
from ..types import DURATION, MEMORY, Reader
from ..words import since

SERVICES: list[Column[ServiceView]] = [
    Column("NAME", lambda one: one.name, least=10, tail=True),
    Column("STATE", lambda one: one.state, style=lambda one: out.STATE_STYLE.get(one.state, "")),
    Column("REPLICAS", lambda one: f"{one.running}/{one.wanted}", right=True),
    Column("BOUNDS", lambda one: f"{one.min_replicas}:{one.max_replicas}", right=True, leave=2),
    Column("VERSION", lambda one: str(one.version), right=True, leave=4),
    Column("RESTARTS", lambda one: str(one.restarts), right=True),
    Column("TIER", lambda one: one.tier, leave=3),
    Column("DEVICES", lambda one: str(one.devices), right=True, leave=1),
    Column("JOBS", lambda one: ",".join(str(replica.job) for replica in one.replicas) or "-", least=8),
    Column("LAST END", lambda one: one.last_end or "-", wide=True),
    Column("IMAGE", lambda one: f"{one.image}: {one.image_error}" if one.image_error else one.image or "-", wide=True),
    Column("USER", lambda one: one.user or "-", wide=True),
    Column("COMMAND", lambda one: one.command, wide=True),
]
GATEWAY: list[Column[dict[str, Any]]] = [
    Column("SERVICE", lambda one: one["name"], least=10, tail=True),
    Column("REPLICAS", lambda one: str(one["replicas"]), right=True),
    Column("WAITING", lambda one: str(one["waiting"]), right=True),
    Column("ANSWERED", lambda one: str(one["requests"].get("ok", 0)), right=True),
    Column("FAILED", lambda one: str(sum(one["requests"].get(name, 0) for name in ("model", "lost"))), right=True),
    Column("REFUSED", lambda one: _refused(one["requests"]), least=8, leave=1),
    Column("RESTARTS", lambda one: str(one.get("restarts", 0)), right=True),
    Column("LAST END", lambda one: one.get("last_end") or "-", least=10, leave=2),
]
REPLICAS: list[Column[ReplicaView]] = [
    Column("JOB", lambda one: str(one.job), right=True),
    Column("NAME", lambda one: one.name, least=10, tail=True),
    Column("STATE", lambda one: one.state, style=lambda one: out.STATE_STYLE.get(one.state, "")),
    Column("VERSION", lambda one: str(one.version), right=True),
    Column("NOTE", lambda one: "is being stopped" if one.retired else "" if one.ready else "not ready yet", least=8),
]


def _replicas(text: str) -> tuple[int, int]:
    """``2`` or ``1:4``."""
    least, colon, most = text.partition(":")
    if not least.isascii() or not least.isdigit() or not (most if colon else least).isdigit() or len(text) > 20:
        raise UsageError(f"not a number of replicas: {text!r}", "write it like 2, or 1:4 for 1 to 4")
    return int(least), int(most if colon else least)


REPLICA_BOUNDS = Reader("replicas", _replicas)


@click.group("serve", short_help="Keep replicas of a server running.", no_args_is_help=True)
def command() -> None:
    """Keep replicas of a server running: started as jobs, made anew when they end, scaled, and updated one after the other. See
    docs/services.md.
    """


_OPTIONS = (
    "devices", "ranks", "kinds", "gpu_mem", "gpu_milli", "share", "cpus", "mem", "sla", "runtime", "share_class", "team",
    "workload", "env", "workdir", "output", "retries", "preempt", "checkpoint_every", "placement",
)  # fmt: skip
"""Options of tide run that a replica may have."""


def _with_options_of_run(deploy: click.Command) -> click.Command:
    deploy.params[1:1] = [param for param in run.command.params if param.name in _OPTIONS]
    return deploy


@_with_options_of_run
@command.command("deploy", short_help="Deploy a service, or another version of one.")
@click.argument("name")
@click.option("--replicas", type=REPLICA_BOUNDS, default="1", show_default=True, metavar="N|MIN:MAX",
              help="Replicas; a range is what it may be scaled to.")  # fmt: skip
@click.option(
    "--model", metavar="MODULE:NAME", help="Serve what @serves decorates, through the gateway, instead of a command."
)
@click.option(
    "--objective", type=DURATION, metavar="TIME", help="With --model: from arrival to answer. Default: 100ms."
)
@click.option(
    "--batching", metavar="POLICY", help="With --model: deadline (default), eager, aimd or deferred, with settings."
)
@click.option(
    "--once", is_flag=True, help="With --model: no request is run again on another replica when its own is lost."
)
@click.option(
    "--reclaim",
    type=DURATION,
    metavar="TIME",
    help="Devices lent to jobs of lower tiers return to further replicas within TIME, e.g. 1s; see docs/serving.md.",
)
@click.option(
    "--scale-down-delay",
    type=DURATION,
    metavar="TIME",
    help="With --model: how long replicas that a peak needed are kept after it. Default: 1m.",
)
@click.option(
    "--from-image",
    is_flag=True,
    help="With --model: further replicas start from an image of the first that is warmed up, on nodes that take full images.",
)
@click.argument("argv", nargs=-1, metavar="-- COMMAND [ARGS]...")
@pass_session
def deploy(session: Session, /, **given: Any) -> None:
    """Deploy COMMAND as the service NAME: each replica is a job that runs it, with the options of tide run.

    The service starts with MIN replicas, at least one. A replica that ends, for whatever reason, is made anew, after pauses that
    grow while replicas end soon after one another. Deployed again with another command or other options, its replicas are
    replaced one after the other: an old one is stopped when a new one runs. On a pool without a free device for the new one, one
    old replica is stopped for it after half a minute.

    With --model, replicas run a model that is defined in Python (docs/serving.md), in this interpreter; requests reach them
    through `tide serve gateway`. They are started again, not suspended, unless --level says otherwise.

    \b
    tide serve deploy --replicas 2:4 --sla premium web -- python server.py
    tide serve deploy --replicas 1:4 --objective 50ms digits --model app:predict
    tide serve scale web 3
    """
    from ...app.jobspec.submission import check_program

    least, most = given.pop("replicas")
    name = given.pop("name")
    model, objective, batching, once = (given.pop(option) for option in ("model", "objective", "batching", "once"))
    from_image, scale_down, reclaim = (given.pop(option) for option in ("from_image", "scale_down_delay", "reclaim"))
    if bool(model) == bool(given["argv"]):
        raise UsageError("give a COMMAND after --, or --model MODULE:NAME", "see tide serve deploy --help")
    if model:
        given |= _replica_of(session, name, model, objective, batching, once, from_image, given)
    elif objective or batching or once or from_image or scale_down is not None:
        raise UsageError(
            "--objective, --batching, --once, --scale-down-delay and --from-image are of a --model",
            "a COMMAND answers its requests itself",
        )
    usual = run.command.make_context("run", list(given["argv"]), click.get_current_context().find_root()).params
    spec = run.spec_of({**usual, **given, "name": name}, "tide serve deploy --help")
    if session.url is None:
        check_program(spec)
    service = ServiceSpec(
        name=name, replica=spec, min_replicas=least, max_replicas=most, reports_ready=bool(model), from_image=from_image,
        scale_down_us=MINUTE if scale_down is None else scale_down, reclaim_us=reclaim or 0,
    )  # fmt: skip
    reply = session.client().deploy(service)
    if reply.warning:
        out.note(f"warning: {reply.warning}")
    out.echo(f"deployed {name}; see tide serve ls {name}")


def _replica_of(
    session: Session,
    name: str,
    model: str,
    objective: int | None,
    batching: str | None,
    once: bool,
    from_image: bool,
    given: dict[str, Any],
) -> dict[str, Any]:
    """Options of a replica that runs a model."""
    from ...app.serving import replica_command

    if objective == 0:
        raise UsageError("--objective 0 cannot be met", "give the time from arrival to answer, e.g. 50ms")
    if session.url is not None:
        raise UsageError("models are deployed on the machine of the controller", "leave out --url, or deploy a COMMAND")
    argv, serving = replica_command(session.state, name, model, objective or 0, batching or "", not once, from_image)
    level = click.get_current_context().get_parameter_source("preempt")
    return {
        "argv": argv,
        "env": (*given["env"], *serving.items()),
        "preempt": "requeue" if level is ParameterSource.DEFAULT else given["preempt"],
    }


@command.command("gateway", short_help="Take requests for models over HTTP.")
@click.option("--listen", default="127.0.0.1:8700", show_default=True, metavar="HOST:PORT", help="A loopback address.")
@click.option(
    "--token-file", type=click.Path(dir_okay=False, exists=True), help="Requests must bring its token as bearer."
)
@click.option("--max-body", type=MEMORY, default="64MiB", show_default=True, metavar="SIZE", help="Largest request.")
@pass_session
def gateway(session: Session, listen: str, token_file: str | None, max_body: int) -> None:
    """Take requests for models (Open Inference Protocol, version 2, over HTTP) and bring them to replicas, batched, until SIGTERM
    or Ctrl-C. Scales services between their bounds by the load. One for each state directory, in the foreground.

    Clients of Triton and KServe work as they are: tritonclient.http.InferenceServerClient("127.0.0.1:8700"). The headers
    tide-timeout-ms and tide-class (rt, be) bound a request and mark best-effort work. See docs/serving.md.
    """
    import logging

    from ...app.serving import read_token, run_gateway

    if session.url is not None:
        raise UsageError("the gateway runs on the machine of the controller", "leave out --url")
    token = read_token(Path(token_file)) if token_file else ""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    run_gateway(session.state, listen, session.client(), token, max_body)


@command.command("top", short_help="What the gateway does.")
@out.output_options(lambda given: GATEWAY)
@pass_session
def top(session: Session, output: str, headers: bool) -> None:
    """What the gateway of this machine does, by service: replicas that are ready, requests that wait, those so far by
    how they ended, and how many replicas were made anew because one ended by itself, with the reason of the last such end.
    """
    from ...app.serving import gateway_status

    reply = gateway_status(session.state)
    out.print_rows(reply["services"], GATEWAY, output, headers, lambda one: str(one["name"]), reply)


def _refused(requests: dict[str, int]) -> str:
    found = {code: count for code, count in requests.items() if code not in ("ok", "model", "lost", "gone")}
    return ", ".join(f"{count} {code}" for code, count in sorted(found.items())) or "0"


@command.command("logs", short_help="Output of all replicas of a service.")
@click.argument("name")
@click.option(
    "--tail", type=click.IntRange(min=0), default=20, show_default=True, metavar="N", help="Last lines of each."
)
@pass_session
def logs(session: Session, name: str, tail: int) -> None:
    """The last lines of each replica of NAME, each after its name. tide logs -f JOB follows one."""
    client = session.client()
    found = [one for one in client.services().services if one.name == name]
    if not found:
        raise NotFound(f"no service {name}", "list them with tide serve ls")
    for replica in found[0].replicas:
        text = b"".join(client.logs(replica.job, tail=tail)).decode(errors="replace")
        for line in text.splitlines():
            out.echo(f"{replica.name}: {line}")


@command.command("ls", short_help="List services, or the replicas of one.")
@click.argument("name", required=False)
@out.output_options(lambda given: [*SERVICES, *REPLICAS])
@pass_session
def ls(session: Session, name: str | None, output: str, headers: bool) -> None:
    """List services, or the replicas of NAME. REPLICAS is how many of the present version run, of those that are wanted.

    STATE: ready (all that are wanted run), starting, updating (replicas of an older version are left), idle (none are wanted),
    deleting.
    """
    reply = session.client().services()
    if name is None:
        out.print_rows(reply.services, SERVICES, output, headers, lambda one: one.name, reply)
        if not reply.services and output == "table":
            out.note("no services; deploy one with tide serve deploy")
        return
    found = [one for one in reply.services if one.name == name]
    if not found:
        raise NotFound(f"no service {name}", "list them with tide serve ls")
    (service,) = found
    if output == "table":
        out.echo(f"{name}: {service.state}, version {service.version}, deployed {since(service.since, reply.now)} ago")
        if service.last_end:
            ago = since(service.last_end_at, reply.now)
            out.echo(
                f"{counted(service.restarts, 'restart')}; job {service.last_end_job} ended {ago} ago: {service.last_end}"
            )
        if service.ends > 1:
            out.note(
                f"{counted(service.ends, 'replica')} ended soon after one another; see their logs with tide logs JOB"
            )
    out.print_rows(service.replicas, REPLICAS, output, headers, lambda one: str(one.job), service)


@command.command("scale", short_help="Have so many replicas of a service.")
@click.argument("name")
@click.argument("replicas", type=click.IntRange(min=0))
@pass_session
def scale(session: Session, name: str, replicas: int) -> None:
    """Have REPLICAS replicas of the service NAME, within the bounds that it is deployed with. Those that wait are stopped before
    those that run, the newest before the oldest."""
    session.client().scale_service(name, replicas)
    out.echo(f"{name} is scaled to {counted(replicas, 'replica')}")


@command.command("delete", short_help="End a service and its replicas.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@pass_session
def delete(session: Session, names: tuple[str, ...]) -> None:
    """End services and their replicas. A service is gone once its replicas have ended."""
    for name in names:
        session.client().delete_service(name)
        out.echo(f"{name} is being deleted")
