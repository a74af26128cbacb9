"""The command line of a runtime's process: settings in, a server until it is asked to end."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...base.errors import TideError, UsageError
from ...base.units import parse_bytes
from ..ladder import STOP_BOUND_MS, StopLevel, choose, may_use_fifo
from ..padding.admission import ALWAYS, NEVER, shares
from ..padding.nvidia_rule import BY_PROFILE
from ..padding.slowdown import DEFAULT_BOUND
from ..scheduler.machine import SchedulerSettings
from .server import RuntimeServer
from .settings import RuntimeSettings

PROFILE = "profile"


def parser() -> argparse.ArgumentParser:
    """All that can be set."""
    found = argparse.ArgumentParser(prog="tidewright.runtime", description=__doc__)
    found.add_argument("--socket", type=Path, required=True)
    found.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: what this process was given"
    )
    found.add_argument("--cores", default="", help="of the device, as in 0,1 (default: all that this process may use)")
    found.add_argument(
        "--stop",
        default="auto",
        help="how best-effort work is stopped: auto, none, signal or gate (cores), cta or kernel (CUDA)",
    )
    found.add_argument("--no-fifo", action="store_true", help="real-time work in the usual scheduling class")
    found.add_argument("--rt-threads", type=int, default=1)
    found.add_argument("--be-threads", type=int, default=1)
    found.add_argument("--memory", default="0", help="for models, as in 8GiB (default: not limited)")
    found.add_argument(
        "--worker-memory", default="0", help="of a worker beyond its models, as in 2GiB (default: not limited)"
    )
    found.add_argument("--task-timeout", type=float, default=60.0, help="device time of a task, seconds")
    found.add_argument(
        "--load-timeout", type=float, default=3600.0, help="until a model must be loaded on a GPU, seconds"
    )
    found.add_argument(
        "--streams", type=int, default=SchedulerSettings().streams, help="best-effort queues that run at once"
    )
    found.add_argument("--quantum-ms", type=float, default=20.0)
    found.add_argument(
        "--stop-bound-ms", type=float, default=0.0, help="longest wait for acknowledgements (by the way to stop)"
    )
    found.add_argument(
        "--requeue", action="store_true", help="exit with 75 on SIGTERM: a job that is to come back elsewhere"
    )
    found.add_argument(
        "--sequential", action="store_true", help="one task at a time, none is stopped: a baseline to measure by"
    )
    found.add_argument(
        "--padding",
        default=NEVER,
        help="best-effort beside real-time work: never, always, a table's file; with --stop kernel: profile",
    )
    found.add_argument(
        "--padding-sms", type=int, default=16, help="of a GPU, for best-effort work with --padding always"
    )
    found.add_argument("--padding-bound", type=float, default=DEFAULT_BOUND, help="largest slow-down that is admitted")
    found.add_argument("--clients", type=int, default=256)
    return found


def settings_of(args: argparse.Namespace) -> RuntimeSettings:
    """Raises UsageError."""
    if not (args.task_timeout > 0 and args.load_timeout > 0):
        raise UsageError("a timeout that is not above 0", "give seconds")
    device = args.device
    if device == "auto":
        device = "cuda" if os.environ.get("CUDA_VISIBLE_DEVICES") else "cpu"
    if device == "cuda" and parse_bytes(args.worker_memory):
        raise UsageError("the worker of a GPU is shared: no client's memory is known", "leave --worker-memory out")
    base = RuntimeSettings(args.socket, parse_cores(args.cores), device)
    stop = choose(args.stop, device)
    padding, share = padding_of(args, device, stop, len(base.cores))
    return replace(
        base,
        stop=stop,
        fifo=not args.no_fifo and may_use_fifo(),
        rt_threads=args.rt_threads,
        be_threads=args.be_threads,
        capacity=parse_bytes(args.memory),
        worker_memory=parse_bytes(args.worker_memory),
        task_timeout_s=args.task_timeout,
        load_timeout_s=args.load_timeout,
        most_clients=args.clients,
        take_over=args.requeue,
        padding=padding,
        padding_share=share,
        shares=shares(padding, share) if device == "cuda" else (),
        padding_bound=args.padding_bound,
        scheduler=SchedulerSettings(
            streams=1 if args.sequential else args.streams,
            window=1 if args.sequential else SchedulerSettings().window,
            preempt=not args.sequential,
            interrupts=stop is not StopLevel.NONE,
            quantum_ns=int(args.quantum_ms * 1e6),
            stop_bound_ns=int((args.stop_bound_ms or STOP_BOUND_MS[stop]) * 1e6),
        ),
    )


def padding_of(args: argparse.Namespace, device: str, stop: StopLevel, cores: int) -> tuple[str, int]:
    """(never, always or a table's file, what always gives). Raises UsageError."""
    if args.padding_sms < 1:
        raise UsageError(f"{args.padding_sms} multiprocessors for padding", "give at least 1 (--padding-sms)")
    if stop is StopLevel.KERNEL and args.padding not in (NEVER, PROFILE):
        raise UsageError("kernels that are launched one by one have no share", "choose --padding profile or never")
    if args.padding != NEVER and (args.sequential or (device == "cuda" and stop is StopLevel.NONE)):
        raise UsageError("nothing is stopped for real-time work here, so there is no padding", "leave --padding out")
    left = args.padding_sms if device == "cuda" else cores - args.rt_threads
    if args.padding != NEVER and left < 1:
        raise UsageError(f"{cores} cores leave none beside real-time work", "use more cores, or --padding never")
    if args.padding != PROFILE:
        return args.padding, left
    if stop is not StopLevel.KERNEL:
        raise UsageError("--padding profile chooses kernel by kernel", "it goes with --device cuda --stop kernel")
    return ALWAYS, BY_PROFILE


def parse_cores(text: str) -> tuple[int, ...]:
    """``0,1`` as cores; empty: all of this process. Raises UsageError."""
    mine = os.sched_getaffinity(0)
    try:
        cores = {int(core) for core in text.split(",")} if text else mine
    except ValueError:
        raise UsageError(f"{text!r} names no cores", "write their numbers, as in 0,1") from None
    if not cores <= mine:
        raise UsageError(f"cores {sorted(cores - mine)} are not this process's", f"choose of {sorted(mine)}")
    return tuple(sorted(cores))


def main(argv: list[str] | None = None) -> None:
    """Exits with 2 where the settings are wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    args = parser().parse_args(argv)
    serve(lambda: settings_of(args), args.requeue)


def serve(settings: Callable[[], RuntimeSettings], requeue: bool) -> None:
    """Until it is asked to end. Exits with 2 where the settings are wrong, with 75 where a job is to come back elsewhere."""
    try:
        chosen = settings()
        server = RuntimeServer(chosen)
        gc.collect()
        gc.freeze()  # a collection of what lives as long as the process would hold real-time work up
        server.serve(lambda: print(f"runtime: ready on {chosen.socket}", flush=True))
        if requeue and server.terminated:
            sys.exit(os.EX_TEMPFAIL)
    except TideError as error:
        print(f"runtime: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
