"""``tide run``: a command line as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ...base.errors import UsageError
from ...model.job import JobSpec, problems
from .. import output as out
from ..session import Session, pass_session
from ..types import (
    CPUS,
    DEADLINE,
    DEPENDENCY,
    DEVICES,
    DURATION,
    EVERY,
    GPU_MILLI,
    GPU_SHARE,
    HOST_MEMORY,
    INDICES,
    JOB_NAME,
    MEMORY,
    TYPES,
    VARIABLE,
)
from .following import finish, say_left_out, submission_options, submit
from .notify_options import notify_options


@click.command("run", short_help="Submit a command as a job.", context_settings={"allow_interspersed_args": False})
@click.option(
    "-g",
    "--devices",
    type=DEVICES,
    default="1",
    show_default=True,
    metavar="N|MIN:MAX",
    help="Devices; a range makes the job elastic.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes, at most 16 per device. Default: one per device; 1 for torchrun and its like.",
)
@click.option("--type", "kinds", type=TYPES, metavar="NAME[,NAME]", help="Device types, best first, e.g. h100,a100.")
@click.option("--gpu-mem", type=MEMORY, metavar="SIZE", help="A share of one device with this much memory, e.g. 12GiB.")
@click.option("--gpu-milli", type=GPU_MILLI, metavar="N",
              help="A share of one device with N thousandths of its compute; with --gpu-mem, both apart.")  # fmt: skip
@click.option("--share", type=GPU_SHARE, metavar="F",
              help="A share of one device, of its compute and its memory alike, e.g. 0.5.")  # fmt: skip
@click.option("--cpus", type=CPUS, metavar="N", help="Host CPUs of each rank, e.g. 4 or 0.5: set aside, and its limit.")
@click.option("--mem", type=HOST_MEMORY, metavar="SIZE",
              help="Host memory of each rank, e.g. 16GiB: set aside, and its limit.")  # fmt: skip
@click.option(
    "--sla",
    type=click.Choice(["premium", "standard", "basic"]),
    help="What is promised: 95%, 70% or nothing of full speed. Default: standard; with --class be basic.",
)
@click.option(
    "--runtime", metavar="NAME", help="Be a client of this device runtime, on its devices; see tide runtime ls."
)
@click.option("--class", "share_class", type=click.Choice(["rt", "be"]),
              help="Real-time or best-effort: of a share (be: in what others leave of the device; default rt), or with --runtime "
              "(default be).")  # fmt: skip
@click.option("--team", metavar="NAME", help="Who it is accounted to.")
@click.option("--name", type=JOB_NAME, metavar="NAME", help="Default: made from the command.")
@click.option("--deadline", type=DEADLINE, metavar="TIME", help="Wanted end, counted from now, e.g. 4h.")
@click.option(
    "--time", "--max-duration", "limit", type=DURATION, metavar="TIME", help="Stop it after so much run time."
)
@click.option("--expect", type=DURATION, metavar="TIME", help="Your estimate of its run time.")
@click.option(
    "--workload", metavar="NAME", help="What it computes, as the pool's table of rates names it; see docs/rates.md."
)
@click.option("--env", type=VARIABLE, multiple=True, metavar="NAME=VALUE", help="Set a variable; may be repeated.")
@click.option("--workdir", type=click.Path(file_okay=False), help="Where it runs. Default: here.")
@click.option("--output", type=click.Path(dir_okay=False), help="Where rank 0 writes; %j id, %x name, %a index.")
@click.option("--retries", type=click.IntRange(0, 1000), default=0, help="How often a failure is tried again.")
@click.option(
    "--level",
    "--preempt",
    "preempt",
    type=click.Choice(["auto", "full", "freeze", "cooperative", "requeue", "none"]),
    default="auto",
    show_default=True,
    help="Highest level of preemption: how it may be made to release its devices.",
)
@click.option(
    "--checkpoint-every",
    type=EVERY,
    default="auto",
    show_default=True,
    metavar="TIME|auto|never",
    help="Run time between images to go back to after a failure.",
)
@click.option(
    "--placement",
    type=click.Choice(["consolidate", "one-node", "any"]),
    default="consolidate",
    show_default=True,
    help="How close together its devices must lie.",
)
@click.option("--after", type=DEPENDENCY, multiple=True, metavar="afterok:JOB",
              help="Run only when JOB (an id, an array, 12_3, or a name) has ended so.")  # fmt: skip
@click.option(
    "-a", "--array", type=INDICES, metavar="0-9%4", help="One job per index (at most 4 at once); see ARRAY_INDEX."
)
@click.option(
    "--array-limit", type=click.IntRange(min=1), metavar="N", help="Members of the array that may run at once."
)
@notify_options
@submission_options
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND [ARGS]...")
@pass_session
def command(session: Session, /, **given: Any) -> int:
    """Submit COMMAND as a job and print its id.

    It runs in this directory with this environment, as it would here; its output goes to `tide logs`. With --wait,
    tide returns the job's exit code (128 + signal for a signal, 124 at its time limit); Ctrl-C stops the waiting, not
    the job.

    \b
    tide run -- python train.py
    tide run -g 4 --sla premium --wait -- python train_ddp.py
    tide run -g 1:4 --array 0-9%2 -- python sweep.py --seed {index}
    tide run --share 0.5 --class be -- python batch_inference.py
    tide run --runtime vision --class rt -- python serve.py
    """
    from ...app.jobspec import members
    from ...app.jobspec.ranks import ranks_note
    from ...app.jobspec.submission import check_program, folder_to_be_made

    spec = spec_of(given, "tide run --help")
    say_left_out()
    if session.url is None:
        if missing := folder_to_be_made(spec):
            out.note(f"warning: {missing} does not exist; it is made when the job starts, for --output")
        check_program(spec)
    hint = "" if given["ranks"] else ranks_note(spec)
    if hint and not given["parsable"]:
        out.note(f"note: {hint}")
    if given["array_limit"] and not given["array"]:
        raise UsageError("--array-limit is of an array", "give its indices too: --array 0-9 --array-limit 4")
    indices, limit = given["array"] or ((), 0)
    specs = members.array(spec, indices, given["array_limit"] or limit) if indices else [spec]
    after = [f"{one.kind}:{one.ref}" for many in given["after"] for one in many]
    jobs = submit(session, specs, given["dry_run"], given["parsable"], after, given["hold"])
    return finish(session, jobs, given["follow"], given["wait"], quiet=given["parsable"])


def spec_of(given: dict[str, Any], page: str) -> JobSpec:
    """The job that options of tide run describe. Raises UsageError with all that is wrong, and the help ``page`` to look at."""
    from ...app.jobspec.members import command_name
    from ...app.jobspec.notify import notification
    from ...app.jobspec.ranks import default_ranks
    from ...app.jobspec.submission import submitter, with_variables

    if given["runtime"] == "":
        raise UsageError("--runtime '' names no runtime", "list them: tide runtime ls")
    share_class, shared = given["share_class"], given["share"] or given["gpu_mem"] or given["gpu_milli"]
    if share_class and not (given["runtime"] or shared):
        raise UsageError(
            "--class is of a share of a device, or of a client of a runtime",
            "ask for a share with --share 0.5, or name the runtime with --runtime",
        )
    kinds, least, most = given["devices"]
    if given["runtime"] and click.get_current_context().get_parameter_source("devices") is ParameterSource.DEFAULT:
        least = most = 0
    me = submitter()
    command = tuple(given["argv"])
    spec = JobSpec(
        name=given["name"] or command_name(command),
        command=command,
        devices=most,
        min_devices=least,
        ranks=given["ranks"] or default_ranks(command, max(most, 1)),
        device_types=given["kinds"] or kinds,
        gpu_memory=given["gpu_mem"] or 0,
        gpu_milli=given["gpu_milli"] or 0,
        gpu_share=given["share"] or 0,
        share_class=share_class if share_class and not given["runtime"] else "rt",
        cpus_milli=given["cpus"] or 0,
        memory=given["mem"] or 0,
        tier=given["sla"] or ("basic" if share_class == "be" and not given["runtime"] else "standard"),
        team=given["team"] or "default",
        user=me.user,
        deadline_us=given["deadline"] or 0,
        max_duration_us=given["limit"] or 0,
        expected_us=given["expect"] or 0,
        workload=given["workload"] or "",
        retries=given["retries"],
        preempt=given["preempt"],
        checkpoint_us=given["checkpoint_every"],
        placement=given["placement"],
        env=with_variables(me.environ, given["env"]),
        workdir=str(Path(me.workdir, Path(given["workdir"] or "").expanduser())),
        output=given["output"] or "",
        runtime=given["runtime"] or "",
        runtime_class=share_class or "be",
        notify=notification(given["mail_type"], given["mail_user"] or (), given["webhook"], me.user),
    )
    wrong = problems(spec)
    if wrong:
        raise UsageError("the job is not sound\n" + "\n".join(f"  {text}" for text in wrong), f"see {page}")
    return spec
