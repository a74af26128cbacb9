"""``tide runtime``: one device shared by real-time and best-effort work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..base.errors import Conflict, NotFound, Unreachable
from ..base.units import counted, format_bytes
from . import output as out
from .output import Column
from .session import Session, pass_session
from .types import DEVICES, MEMORY

CLIENTS: list[Column[dict[str, Any]]] = [
    Column("CLIENT", lambda row: row["name"], least=10, tail=True),
    Column("CLASS", lambda row: row["class"]),
    Column("PID", lambda row: str(row["pid"]), right=True, leave=5),
    Column("WEIGHT", lambda row: str(row["weight"]) if row["class"] == "be" else "-", right=True, leave=7),
    Column("STREAM", lambda row: "broken" if row["broken"] else row["stream"] or "-", leave=6),
    Column("WAITING", lambda row: str(row["outstanding"]), right=True),
    Column("DONE", lambda row: str(row["done"]), right=True),
    Column("FAILED", lambda row: str(row["failed"]), right=True, leave=2),
    Column("PREEMPTED", lambda row: str(row["preemptions"]), right=True, leave=1),
    Column(
        "DEVICE", lambda row: f"{row['device_s']:.1f}s" if row["device_s"] is not None else "-", right=True, leave=3
    ),
    Column("MEMORY", lambda row: format_bytes(sum(model["bytes"] for model in row["models"])), right=True, leave=4),
    Column("MODELS", lambda row: ",".join(model["name"] for model in row["models"]) or "-", least=8),
]
RUNTIMES: list[Column[dict[str, Any]]] = [
    Column("NAME", lambda row: row["name"], least=10, tail=True),
    Column("STATE", lambda row: row["state"]),
    Column("DEVICE", lambda row: row.get("device", "-"), least=10, leave=1),
    Column("STOP", lambda row: row.get("stop", "-"), leave=2),
    Column("CLIENTS", lambda row: str(len(row.get("clients", ()))), right=True),
    Column("PREEMPTIONS/S", lambda row: f"{row['preemptions_per_s']:.1f}" if "clients" in row else "-", right=True),
]


@click.group("runtime", short_help="Share one device between real-time and best-effort work.", no_args_is_help=True)
def command() -> None:
    """Share one device between real-time and best-effort work of several programs.

    Best-effort work stops within microseconds when real-time work arrives, and goes on exactly where it was. See
    docs/runtime.md for the client in Python.
    """


@command.command("up", short_help="Start a runtime as a job of the pool.")
@click.option(
    "-g", "--devices", type=DEVICES, default="1", show_default=True, metavar="N", help="Devices that it owns."
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
              help="What it runs tasks on. auto: what its job is given.")  # fmt: skip
@click.option("--name", default="runtime", show_default=True, help="What tide runtime calls it.")
@click.option("--sla", type=click.Choice(["premium", "standard", "basic"]), default="standard", show_default=True,
              help="The tier of its job.")  # fmt: skip
@click.option("--stop", type=click.Choice(["auto", "signal", "gate", "cta", "kernel", "none"]), default="auto", show_default=True,
              help="How best-effort work is stopped: signal or gate on cores, cta or kernel on a GPU.")  # fmt: skip
@click.option("--padding", default="never", show_default=True, metavar="FILE|always|never|profile",
              help="Best-effort work beside real-time work: a table of tide runtime calibrate; "
                   "profile: with --stop kernel.")  # fmt: skip
@click.option("--padding-sms", type=click.IntRange(min=1), default=16, show_default=True, metavar="N",
              help="Of a GPU, with --padding always: multiprocessors for best-effort work.")  # fmt: skip
@click.option("--rt-threads", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Threads, and cores, of a real-time task.")  # fmt: skip
@click.option("--memory", type=MEMORY, metavar="SIZE", help="For models, e.g. 8GiB. Default: not limited.")
@click.option("--worker-memory", type=MEMORY, metavar="SIZE", help="Of a client's worker beyond its models.")
@click.option("--task-timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True,
              metavar="SECONDS", help="Device time after which a task's worker is killed.")  # fmt: skip
@click.option("--streams", type=click.IntRange(min=1), default=32, show_default=True, metavar="N",
              help="Best-effort clients that run at once.")  # fmt: skip
@pass_session
def up(
    session: Session, devices: tuple[Any, int, int], device: str, name: str, sla: str, stop: str,
    padding: str, padding_sms: int, rt_threads: int, memory: int | None,
    worker_memory: int | None, task_timeout: float, streams: int,
) -> None:  # fmt: skip
    """Submit the runtime as a job that owns whole devices, and print the path that clients connect to.

    \b
    tide runtime up --name vision
    tide runtime top vision
    tide runtime down vision
    """
    from ..app.jobspec.submission import submitter, with_variables
    from ..app.runtime import daemon_command, socket_of
    from ..model.job import RUNTIME_SOCKET, JobSpec
    from .jobs.following import submit

    options = [
        "--requeue",
        "--device",
        device,
        "--stop",
        stop,
        "--task-timeout",
        str(task_timeout),
        "--streams",
        str(streams),
    ]
    options += ["--memory", str(memory or 0), "--worker-memory", str(worker_memory or 0)]
    options += ["--rt-threads", str(rt_threads)]
    options += ["--padding-sms", str(padding_sms)]
    options += ["--padding", padding if padding in ("always", "never", "profile") else str(Path(padding).absolute())]
    me = submitter()
    for job in session.client().jobs(name=name, user=me.user).jobs:
        if job.kind == "runtime" and job.state != "stopping":
            raise Conflict(f"runtime {name!r} is job {job.id}, {job.state}", f"use it, or end it: tide cancel {job.id}")
    kinds, _, count = devices
    spec = JobSpec(
        name=name,
        kind="runtime",
        command=daemon_command(session.state, name, options),
        devices=count,
        min_devices=count,
        ranks=1,
        device_types=kinds,
        tier=sla,  # type: ignore[arg-type]
        preempt="requeue",
        user=me.user,
        placement="one-node",
        env=with_variables(me.environ, [(RUNTIME_SOCKET, str(socket_of(session.state, name)))]),
        workdir=str(Path(me.workdir)),
    )
    submit(session, [spec], dry_run=False, parsable=False)
    out.echo(f"clients connect to {socket_of(session.state, name)}")


@command.command("down", short_help="End a runtime; its clients get errors.")
@click.argument("name", default="runtime")
@pass_session
def down(session: Session, name: str) -> None:
    """Have runtime NAME end. Tasks that have not ended are dropped, and its job completes. What one that was killed has left
    is removed."""
    from ..app.runtime import shut_down

    shut_down(session.state, name)
    out.echo(f"runtime {name} is down")


@command.command("ls", short_help="List runtimes.")
@out.output_options(lambda given: RUNTIMES)
@pass_session
def ls(session: Session, output: str, headers: bool) -> None:
    """Runtimes of this state directory, and whether they answer."""
    from ..app import runtime

    rows = []
    for name in runtime.runtime_names(session.state):
        try:
            rows.append({"name": name, "state": "up", **runtime.stats(session.state, name)})
        except NotFound:
            rows.append({"name": name, "state": "down"})
        except Unreachable:
            rows.append({"name": name, "state": "silent"})
    out.print_rows(rows, RUNTIMES, output, headers, lambda row: row["name"], {"runtimes": rows})


@command.command("top", short_help="Watch a runtime's clients live.")
@click.argument("name", default="runtime")
@click.option("--once", is_flag=True, help="Print once and return; the default in a pipe.")
@out.json_option
@pass_session
def top(session: Session, name: str, once: bool, output: str) -> None:
    """Clients of runtime NAME, their class, what they have done and how often they were preempted."""
    from ..app import runtime

    if output == "json":
        out.print_json(runtime.stats(session.state, name))
    elif once or not out.colourful():
        found = runtime.stats(session.state, name)
        out.echo(f"{summary(name, found)}\n")
        out.print_table(found["clients"], CLIENTS)
    else:
        from rich.text import Text

        from .watching import repeat

        def view() -> Text:
            found = runtime.stats(session.state, name)
            return Text.from_ansi(f"{summary(name, found)}\n\n{out.table_text(found['clients'], CLIENTS)}")

        repeat(view)


@command.command("calibrate", short_help="Measure which models may run beside each other.")
@click.argument("models", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The table.")
@click.option("--cores", metavar="0,1", help="Of the device. Default: all of this process.")
@click.option("--rt-threads", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Threads, and cores, of a real-time task.")  # fmt: skip
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
              help="What is measured: cores, or the GPU of this machine.")  # fmt: skip
@click.option("--sms", default="8,16,32,64", show_default=True, metavar="8,16",
              help="Of a GPU: multiprocessors for best-effort work, each measured.")  # fmt: skip
@click.option(
    "--samples", type=click.IntRange(min=8), default=100, show_default=True, metavar="N", help="Requests for each pair."
)
def calibrate(
    models: Path, target: Path, cores: str | None, rt_threads: int, device: str, sms: str, samples: int
) -> None:
    """Run each model of MODELS in real time beside each as best-effort work, and write by how much it is slowed down.

    MODELS is YAML: a list of entries with factory, inputs (TYPE:SHAPE each) and, where needed, arguments and state. The
    table is for this machine and software; tide runtime up --padding FILE takes it. With --device cuda each pair is measured for
    each number of multiprocessors in --sms, which takes a runtime and minutes of compiling each.

    \b
    - factory: torchvision.models:resnet18
      inputs: ["float32:1x3x224x224"]
    """
    from ..app import runtime
    from ..app.output_file import check_output, write_output

    check_output(target, "--to")
    try:
        shares = [int(share) for share in sms.split(",")] if device == "cuda" else []
    except ValueError:
        raise click.BadParameter(f"{sms!r}: write numbers, as in 8,16", param_hint="--sms") from None
    if shares and (cores or rt_threads != 1):
        raise click.UsageError("--cores and --rt-threads are of a device of cores; leave them out with --device cuda")
    check_output(target, "--to")
    table = runtime.calibrate(
        models, cores or "", rt_threads, samples, lambda done, of: out.note(f"pair {done + 1} of {of}"), shares
    )
    write_output(target, runtime.dump_table(table), "--to")
    if left_out := sorted(set(shares) - {pair.share_sms for pair in table.pairs}):
        out.note(f"nothing was measured on {', '.join(map(str, left_out))} multiprocessors: more than can be spared, "
                 "or no model can be stopped throughout")  # fmt: skip
    for pair in table.pairs:
        on = f" on {pair.share_sms} multiprocessors" if shares else ""
        out.echo(f"{pair.slowdown:+7.1%}  {pair.be}{on} beside {pair.rt}")


def summary(name: str, found: dict[str, Any]) -> str:
    """One line on a runtime."""
    stops = found["stop_acknowledged_us"]
    stop_times = f", stops acknowledged in {stops['p50']:.0f} us (p99 {stops['p99']:.0f})" if stops else ""
    return (
        f"{name}: {found['device']}, cores {','.join(map(str, found['cores']))}, stop {found['stop']}, "
        f"{found['rt_tasks']} real-time and {counted(found['be_tasks'], 'best-effort task')}, "
        f"{counted(found['preemptions'], 'preemption')} "
        f"({found['preemptions_per_s']:.1f}/s){stop_times}"
    )


@command.command("inspect", short_help="How a model can be stopped on this machine.")
@click.argument("factory", metavar="MODEL")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    required=True,
    metavar="TYPE:SHAPE",
    help="e.g. float32:1x3x224x224; repeat in order.",
)
@click.option("--arguments", default="{}", metavar="JSON", help="Passed to the factory by name.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: how each kernel could be stopped there; code is generated for it, no GPU is needed.",
)
@out.json_option
def inspect(factory: str, inputs: tuple[str, ...], arguments: str, device: str, output: str) -> None:
    """Load MODEL (module:function or file.py:function) for a moment and print its signature, memory, run time, and each way
    to stop it, strongest first.

    \b
    tide runtime inspect torchvision.models:resnet18 --input float32:1x3x224x224
    """
    from ..app import runtime

    try:
        given = json.loads(arguments)
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"{error}; write a JSON object", param_hint="--arguments") from None
    if not isinstance(given, dict):
        raise click.BadParameter("write a JSON object", param_hint="--arguments")
    specs = [runtime.parse_input(text) for text in inputs]
    found = (runtime.inspect_for_gpu if device == "cuda" else runtime.inspect)(factory, specs, given, Path.cwd())
    if output == "json":
        out.print_json(found)
        return
    if device == "cuda":
        out.print_facts([("Model", found["model"]), ("Device", f"{found['device']}, code only")])
        out.echo("\n".join(found["lines"]))
        return
    facts = [("Model", found["model"]), ("Signature", found["signature"]), ("Memory", format_bytes(found["bytes"]))]
    out.print_facts([*facts, ("Run time", f"{found['run_us'] / 1000:.3f} ms")])
    for level in found["levels"]:
        out.echo(f"{level['level']:<18}{'yes' if level['possible'] else 'no':<5}{level['why']}")
