"""What to do about what codes say, what happens next to jobs that wait, and the changes that would start them."""

from __future__ import annotations

from ..model.cause import Code as C  # noqa: N817
from .reasons import Reason

REMEDIES: dict[C, str] = {
    C.SPEC_WRONG: "correct these and submit again",
    C.ONE_OF_SPECS: "{why:remedy}",
    C.TOO_CROWDED: "ask for at least {needed:n} device{needed:s} (-g {needed:n}), start {ranks_that_fit:n} "
    "rank{ranks_that_fit:s} or fewer, or raise "
    "engine.max_ranks_per_device in STATE/config.yaml",
    C.UNKNOWN_DEPENDENCY: "list known jobs with tide ps --all",
    C.NO_SUCH_RUNTIME: "see tide runtime ls; start one with tide runtime up --name NAME",
    C.NOT_YOUR_RUNTIME: "start one of your own: tide runtime up",
    C.FOLLOWS_RUNTIME: "see where that is: tide show {runtime:n}",
    C.NO_SUCH_TYPE: "the pool has: {known:names}",
    C.SHARE_TOO_LARGE: "the nearest that fits: --gpu-mem {most:mib}MiB, or whole devices with -g",
    C.NEVER_FITS: "the nearest that fits: -g {most:n}",
    C.CPUS_TOO_FEW: "the nearest that fits: --cpus {nearest:cpus}, or fewer ranks",
    C.HOST_MEMORY_TOO_SMALL: "the nearest that fits: --mem {nearest:mib}MiB, or fewer ranks",
    C.NO_SUCH_JOB: "list jobs with tide ps --all",
    C.ENDED_ALREADY: "nothing is left to do",
    C.BEING_STOPPED: "nothing is left to suspend",
    C.NOT_WAITING: "have it release its devices: tide suspend {job:n}",
    C.IS_REPLICA: "change all of them with tide serve deploy; tide cancel {job:n} has another one take its place",
    C.ENDING: "see how it ends: tide show {job:n}",
    C.CHANGES_WRONG: "correct these and ask again",
    C.NO_LIMIT: "give the whole of it: tide update {job:n} --time 2h",
    C.LIMIT_TOO_SHORT: "end the job with tide cancel {job:n}, or give the whole limit, like --time 2h",
    C.TEAM_HAS_IMAGES: "change it before the first start, or give up its work first: tide requeue --hold {job:n}",
    C.NAME_IN_OUTPUT: "leave its name as it is",
    C.WAITS_ALREADY: "see why: tide why {job:n}",
    C.ENDED_FOR_GOOD: "submit it again with tide run or tide submit; see how it was with tide show {job:n}",
    C.NO_IMAGE_OF: "leave out --from-image, and it starts from its beginning",
    C.HOLD_REQUEUED: "to keep it from starting: tide hold {job:n}; tide requeue --hold does both at once",
    C.NOT_SUSPENDABLE: "freeze it for a moment with --for (at most {bound:seconds}), cancel it, or submit it with "
    "--preempt cooperative",
    C.NOT_HELD: "ask why: tide why {job:n}",
    C.NO_IMAGE_NOW: "see how it is with tide show {job:n}",
    C.NO_SUCH_ARRAY: "list jobs with tide ps --all; an array's id is that of its first member",
    C.ARRAY_OVER: "nothing is left to do",
    C.NO_SUCH_NODE: "list nodes with tide nodes",
    C.NOTHING_LEARNT: "list what was learnt with tide rates --learnt",
    C.NO_SUCH_SERVICE: "list them with tide serve ls",
    C.BEING_DELETED: "deploy it again when tide serve ls does not show it any more",
    C.REPLICAS_OUT_OF_BOUNDS: "deploy it with other bounds: tide serve deploy --replicas MIN:MAX",
    C.NO_SERVICE_IMAGE: "replicas start from the beginning meanwhile; see tide serve ls -o wide",
    C.NODE_UNSCHEDULABLE: "name another node",
    C.ALREADY_THERE: "name another node (tide nodes lists them), or let it choose: tide migrate {job:n}",
    C.NOT_YET: "try again when it runs",
    C.HELD_STILL: "release it first: tide resume {job:n}",
    C.NOT_MOVABLE_NOW: "try again when it runs",
    C.NOT_MOVABLE: "only a job that can be imaged whole moves; see tide doctor",
    C.NOT_MOVABLE_THERE: "name other nodes",
    C.ON_EVERY_NODE: "tide nodes lists them; tide up --hosts N makes more",
    C.NODES_TOO_SMALL: "name other or more nodes",
    C.NO_ROOM: "try again later, or name other nodes",
    C.SCALE_OUT_OF_RANGE: "the nearest: tide scale {job:n} {nearest:n}",
    C.RANKS_NOT_SHARABLE: "it runs on {count:n} device{count:s} or not at all",
    C.NO_RESTORE_NODES: "try again when such a node is there",
    C.FEW_RESTORE_NODES: "the nearest: tide scale {job:n} {most:n}",
    C.NOT_RESIZABLE: "scale it while it waits, or submit it anew",
    C.NOT_RESIZABLE_NOW: "try again later",
    C.NOT_ENOUGH_FREE: "try again later, or ask for fewer",
    C.NO_CHANGE_STARTS: "see when it starts: tide eta {job:n}",
    C.NO_CHANGE_IN_TIME: "see when it starts: tide eta {job:n}",
    C.NOTHING_TO_CHANGE: "see which nodes there are: tide nodes",
    C.TEXT: "{remedy}",
}  # fmt: skip
"""What to do next, for refusals; arguments that their sentence does not name come after those that it does."""

CONSEQUENCE: dict[Reason, str] = {
    Reason.NEVER_FITS: "refused; no node of the pool could ever hold it",
    Reason.NO_CAPACITY: "waits; tried again when devices are freed",
    Reason.FRAGMENTED: "waits; tried again when the free devices lie better together",
    Reason.CPUS: "waits; tried again when host CPUs beside free devices are freed",
    Reason.HOST_MEMORY: "waits; tried again when host memory beside free devices is freed",
    Reason.BEHIND: "waits; tried again when the job ahead has started",
    Reason.RESERVED: "waits; free devices are kept for the job ahead that could otherwise starve",
    Reason.TIER: "waits; jobs whose promise is closer to breaking have the devices",
    Reason.DEVICES_RESERVED: "starts when the jobs on its reserved devices have released them",
    Reason.DEPENDENCY: "waits; released when the named jobs have ended as asked",
    Reason.USER_HOLD: "waits; released by tide resume",
    Reason.SERVICE_IMAGE: "stays as it is until its service is updated or deleted",
    Reason.ARRAY_LIMIT: "waits; tried again when another member of the array has ended",
    Reason.RUNTIME: "waits; starts when its runtime runs",
    Reason.BACKOFF: "waits; retried after a pause that doubles with each failure",
    Reason.NODES_DOWN: "waits; tried again when a node that could hold it is back",
    Reason.PINNED_NODE_BUSY: "waits; its memory is frozen on one node, whose devices are busy",
    Reason.PLANNING: "a plan is being made; asked again in a moment",
}
"""What happens next to a job that waits."""
CONSEQUENCE_OF_HOLD = "waits; released by tide release"
"""The same where it is kept from starting, not suspended (``Reason.USER_HOLD`` too)."""
CONSEQUENCE_OF_BOTH = "waits; released when the named jobs have ended as asked and its hold is over"
"""The same of a job that waits for others (``Reason.DEPENDENCY``) and is held by its user besides."""

REASON_REMEDY: dict[Reason, str] = {
    Reason.DEVICES_RESERVED: "see when it starts: tide eta {job}",
    Reason.DEPENDENCY: "see which jobs it waits for: tide show {job}",
    Reason.USER_HOLD: "release it: tide resume {job}",
    Reason.SERVICE_IMAGE: "see its service: tide serve ls",
    Reason.ARRAY_LIMIT: "see when it starts: tide eta {job}",
    Reason.RUNTIME: "see which runtimes run: tide runtime ls",
    Reason.BACKOFF: "see why it failed: tide logs {job}",
    Reason.PLANNING: "ask again: tide why {job}",
}
"""What to do next about a limit that no change of requests, jobs or nodes lifts."""

STANDINGS = {
    "pressing": "it presses", "brief-pressing": "brief, and it presses", "open": "it does not press yet",
    "late": "its promise is broken", "brief": "brief",
}  # fmt: skip
"""How a job's promise stands, by which ``sla`` serves it."""

KINDS_OF_CHANGE = {
    "request": "a smaller or wider request", "tier": "a higher tier", "move": "other jobs moved",
    "scale": "elastic jobs at their least size", "undrain": "drained and cordoned nodes back",
    "wait": "the ends of running jobs", "cancel-waiting": "a waiting job cancelled", "cancel": "a running job cancelled",
    "nodes": "more nodes",
}  # fmt: skip
"""Kinds of changes (``plan.explain.Change``) that are looked for."""
