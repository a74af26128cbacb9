"""A journal with pseudonyms has no word of its users, and replays to the same."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tidewright.drive.record import StepRecord, decode, encode
from tidewright.drive.redaction import Pseudonyms, Redaction
from tidewright.drive.replay import replay
from tidewright.engine.commands import Ended, Reply
from tidewright.engine.engine import Engine
from tidewright.engine.events import DeployService, Exited, Move, NodeDrain, NodeUp, Submit
from tidewright.engine.settings import EngineSettings
from tidewright.estimate.history import _VARIABLE, _keys
from tidewright.model.cause import Cause, Code
from tidewright.model.failure import RankFailure
from tidewright.model.job import JobSpec
from tidewright.model.node import NodeSpec
from tidewright.model.rate import RateSettings, Throughput
from tidewright.testing.swarm import Swarm
from tidewright.testing.swarm_services import ServiceSwarm

from ..sizes import examples

KEY = b"a key of a test"
WORDS = (
    "adalovelace",
    "visionary",
    "imagenet",
    "secretproject",
    "ziggurat",
    "homedir",
    "checkpointfile",
    "hostess",
    "rackety",
)
USERS = JobSpec(
    name="imagenet-secretproject-20261128", command=("python", "/homedir/adalovelace/ziggurat.py", "--out=checkpointfile"),
    team="visionary", user="adalovelace", run_as="adalovelace", env={"ADA": "ziggurat"}, workdir="/homedir/adalovelace",
    output="checkpointfile-%j", workload="ziggurat",
)  # fmt: skip


class _Named(Swarm):
    """A swarm whose jobs and nodes have names that can be searched for."""

    def _submission(self) -> Submit:
        given = super()._submission()
        name = self.rng.choice(("imagenet", "ziggurat-run", "imagenet_3fa9bc12de")) + f"-{self.submitted}"
        spec = replace(
            given.spec, name=name, team=self.rng.choice(("visionary", "secretproject")),
            user=self.rng.choice(("adalovelace", "hostess")),
            command=USERS.command, env=USERS.env, workdir=USERS.workdir, output=USERS.output,
        )  # fmt: skip
        return replace(given, spec=spec)

    def _node(self, index: int) -> NodeSpec:
        return replace(super()._node(index), name=f"hostess{index}.visionary", domain=(f"rackety{index // 2}",))


@pytest.mark.parametrize("seed", range(6))
def test_a_hostile_world_replays_to_the_same_without_a_word_of_its_users(seed: int) -> None:
    swarm = _Named(seed)
    swarm.run(100)
    redaction = Redaction(KEY)
    lines = [redaction.step(record) for record in swarm.journal.records]
    assert any(b"ziggurat" in record for record in swarm.journal.records), "the search can find something"
    text = b"".join(lines).decode().lower()
    assert not [text[max(0, at - 80) : at + 20] for word in WORDS if (at := text.find(word)) >= 0]
    again = replay(lines, swarm.engine.settings)  # raises where any command is another one
    assert again.book.outcomes == swarm.engine.book.outcomes
    assert [again.book.table.record(job) for job in again.book.specs] == [
        swarm.engine.book.table.record(job) for job in swarm.engine.book.specs
    ]
    assert [(job, spec.devices, spec.tier) for job, spec in again.book.specs.items()] == [
        (job, spec.devices, spec.tier) for job, spec in swarm.engine.book.specs.items()
    ]


def test_replicas_are_called_after_the_pseudonym_of_their_service() -> None:
    swarm = ServiceSwarm(3)
    swarm.run(100)
    redaction = Redaction(KEY)
    lines = [redaction.step(record) for record in swarm.journal.records]
    deployed = [
        event for record in swarm.journal.records for event in decode(record).events if isinstance(event, DeployService)
    ]
    names = {event.service.name for event in deployed}
    assert names and not [name for name in names if f'"{name}-' in b"".join(lines).decode()]
    engine = Engine(swarm.engine.settings)
    for line in lines:
        record = decode(line)
        again = engine.step(record.now, record.events)
        assert list(map(_without_mistakes, again)) == list(map(_without_mistakes, record.commands))


def _without_mistakes(command: Any) -> Any:
    """Of what is wrong with a request that is refused, the engine has words of its own, which are not told from its user's."""
    wrong = isinstance(command, Reply) and command.error is not None and command.error.code is Code.SPEC_WRONG
    return replace(command, error=None) if wrong else command


def _all_words(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [word for key, item in value.items() for word in [*_all_words(key), *_all_words(item)]]
    if isinstance(value, list):
        return [word for item in value for word in _all_words(item)]
    return [value] if isinstance(value, str) else []


def test_every_field_that_may_hold_a_word_of_a_user_is_covered() -> None:
    failure = RankFailure(1, 5, "ziggurat said no", "hostess1", 20.0, ("password is ziggurat",))
    events: list[Any] = [
        NodeUp(NodeSpec(name="hostess1.visionary", kind="h100", domain=("rackety",),
                        uuids=("GPU-ziggurat",), note="adalovelace"), "adalovelace"),
        Submit(USERS, "adalovelace-op"),
        Move(1, ("hostess1.visionary",), "adalovelace-op"), NodeDrain("hostess1.visionary", True, "for adalovelace"),
        Exited(1, 1, 5, why="ziggurat said no", failure=failure),
    ]  # fmt: skip
    why = Code.TEXT("adalovelace: ziggurat on hostess1")
    story = ((1, "QUEUED", why), (2, "STARTING", Cause(Code.JOB_IS, (1, "RUNNING"))))
    ended = Ended(
        job=1, spec=USERS, state=9, submit=0, first_start=1, end=2, ideal_us=1, attained_milli_us=1, held_milli_us=1,
        preemptions=0, attempts=1, code=5, why=why, history=story, failure=failure,
    )  # fmt: skip
    redaction = Redaction(KEY)
    body = redaction.step(encode(StepRecord(7, 42, events, [ended])))
    found = _all_words(msgspec.json.decode(body))
    assert not [text for text in found if any(word in text.lower() for word in WORDS)]
    record = decode(body)
    (again,) = record.commands
    assert isinstance(again, Ended) and (record.turn, record.now, again.code) == (7, 42, 5)
    assert [entry[1] for entry in again.history] == ["QUEUED", "STARTING"] and again.history[1][2].args == (
        1,
        "RUNNING",
    )
    submitted, moved = record.events[1], record.events[2]
    assert isinstance(submitted, Submit) and isinstance(moved, Move) and isinstance(record.events[0], NodeUp)
    assert submitted.spec == again.spec and submitted.spec.env == {} and submitted.op_id == moved.op_id
    assert moved.nodes == (record.events[0].node.name,) and record.events[0].node.kind == "h100"
    declared = EngineSettings(
        rates=RateSettings(
            throughputs=(Throughput("ziggurat", "h100", 4, 2.0),), spread={"ziggurat": 0.5}, kinds={"h100": 2.0}
        )
    )
    plain = redaction.settings(declared)
    known = msgspec.convert(plain, EngineSettings)
    assert known.rates.throughputs[0].workload == submitted.spec.workload == next(iter(known.rates.spread))
    assert known.rates.kinds == {"h100": 2.0} and "ziggurat" not in str(plain)


def test_another_export_has_other_pseudonyms() -> None:
    body = encode(StepRecord(1, 1, [Submit(USERS, "a")], []))
    assert Redaction(b"k").step(body) != Redaction(b"l").step(body)
    assert (
        Pseudonyms(b"k").text("adalovelace")
        == Pseudonyms(b"k").text("adalovelace")
        != Pseudonyms(b"l").text("adalovelace")
    )


@settings(max_examples=examples(60))
@given(st.lists(st.text("abcxyzA0123456789ä_.[]-", min_size=1, max_size=20), max_size=12), st.binary(min_size=1))
def test_equal_stays_equal_and_other_stays_other(names: list[str], key: bytes) -> None:
    known = Pseudonyms(key)
    found = [known.text(name) for name in names]
    assert len(set(found)) == len(set(names)) and found == [known.text(name) for name in names]


@given(
    st.lists(st.from_regex(r"(train|run|bert)[-_]?([0-9]{1,9}|[0-9a-f]{8,12})?(-v[0-9]+)?", fullmatch=True), min_size=2)
)
def test_jobs_that_estimates_take_for_alike_stay_alike(names: list[str]) -> None:
    known = Pseudonyms(KEY)

    def groups(of: list[str]) -> list[int]:
        keys = [_keys(JobSpec(name=name, command=("x",), user="u"))[1][1] for name in of]
        return [keys.index(key) for key in keys]

    assert groups(names) == groups([known.text(name) for name in names])


@pytest.mark.parametrize(
    "address", ["10.12.3.250", "127.0.0.1", "fe80::1", "2001:db8:0:1:2:3:4:5", "::ffff:10.12.3.250", "::1"]
)
@pytest.mark.parametrize("text", ["curl http://{}:80/x", "{}", "ping {}.", "--host={},", "ssh [{}]:22"])
def test_addresses_of_hosts_go(address: str, text: str) -> None:
    given = text.replace("{}", f"[{address}]" if ":" in address and "http" in text else address)
    known = Pseudonyms(KEY)
    assert address not in known.text(given) and known.text(address) in known.text(given)
    assert address.rpartition(":")[2] not in re.split(r"[^\w.]", known.text(address))
    assert known.text(address) != known.text(address + "0")


def test_versions_and_times_stay() -> None:
    assert Pseudonyms(KEY).text("2.11.0 10:30:00 1:2:3") == "2.11.0 10:30:00 1:2:3"


def test_counters_stay_and_dates_go() -> None:
    text = Pseudonyms(KEY).text("sweep[3]-7-20261128-42")
    assert re.fullmatch(r"[g-v]{4,}\[3\]-7-\d{8}-42", text) and "20261128" not in text
    assert _VARIABLE.sub("#", text).endswith("[#]-#-#-#")
