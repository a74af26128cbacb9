"""Framing of the agent's calls: however the bytes are cut, the frames are the same."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewright.wire.agent import (
    ErrorReply,
    JobReport,
    LaunchArgs,
    Line,
    Push,
    RankFailure,
    RankSeat,
    RpcRequest,
    RpcResponse,
)
from tidewright.wire.framing import FrameError, Framer, decode, encode, raw


@given(st.lists(st.binary(max_size=20).filter(lambda part: b"\n" not in part)), st.lists(st.integers(0, 60)))
def test_frames_do_not_depend_on_how_bytes_arrive(frames, cuts):
    stream = b"".join(frame + b"\n" for frame in frames)
    framer, found = Framer(), []
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        found += framer.feed(stream[start:end])
    assert found == frames


@pytest.mark.parametrize("chunks", [[b"x" * 11], [b"x" * 6, b"x" * 6], [b"ok\n" + b"x" * 11], [b"x" * 11 + b"\n"]])
def test_long_frames_are_refused_before_they_end(chunks):
    framer = Framer(limit=10)
    with pytest.raises(FrameError, match="10 bytes"):
        for chunk in chunks:
            framer.feed(chunk)
    assert Framer(limit=10).feed(b"x" * 10 + b"\n") == [b"x" * 10]


@given(st.text(), st.dictionaries(st.text(), st.text()), st.integers(0, 2**31))
def test_launches_survive_the_wire(name, env, number):
    seats = (RankSeat(0, 0, (1, 2)),)
    args = LaunchArgs(job=number, attempt=1, name=name, command=(name,), env=env, ranks=seats)
    frame = encode(RpcRequest(number, "launch", "op", 3, raw(args)))
    assert frame.count(b"\n") == 1
    request = decode(frame[:-1], RpcRequest)
    assert decode(bytes(request.args), LaunchArgs) == args


def test_answers_and_reports_are_distinguished():
    report = JobReport(job=1, attempt=0, state="running", first_failure=RankFailure(2, 5, "exit code 5"))
    assert decode(encode(Push(report)), Line).report == report
    answer = decode(encode(RpcResponse(4, ok=raw(report))), Line)
    assert answer.id == 4 and decode(bytes(answer.ok), JobReport) == report and answer.report is None
    refusal = decode(encode(RpcResponse(4, error=ErrorReply("fenced", "old"))), Line)
    assert refusal.error is not None and refusal.error.kind == "fenced" and not bytes(refusal.ok)


@pytest.mark.parametrize("junk", [b"", b"{", b'{"id":"1"}', b'{"id":1}', b"\xff", b"[" * 10**5, b"null"])
def test_junk_is_a_frame_error(junk):
    with pytest.raises(FrameError):
        decode(junk, RpcRequest)


def test_huge_messages_are_refused_by_the_sender():
    with pytest.raises(FrameError, match="limit"):
        encode(RpcRequest(1, "launch", args=raw("x" * 2**24)))
