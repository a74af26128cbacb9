"""What no agent could launch."""

from __future__ import annotations

from ...base.errors import UsageError
from ...wire.agent import LaunchArgs


def check(args: LaunchArgs) -> None:
    """Raise UsageError for what no agent could launch."""
    numbers = [seat.rank for seat in args.ranks]
    if not args.command:
        raise UsageError("nothing to run", "give a command")
    if not numbers or len(set(numbers)) != len(numbers) or not all(0 <= rank < args.world_size for rank in numbers):
        raise UsageError(f"ranks {numbers} of a world of {args.world_size}", "name each rank of this node once")
    share = args.gpu_memory or args.gpu_milli or args.share_class == "be"
    if share and len({device for seat in args.ranks for device in seat.devices}) > 1:
        raise UsageError("a share of several devices", "have all ranks on one: a share is of one device")
    if any("\0" in text for text in (*args.command, *args.env, *args.env.values(), args.workdir, args.output)):
        raise UsageError("a zero byte in command, environment or path", "remove it; no program can be given one")
