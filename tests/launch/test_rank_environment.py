"""The environment of a rank, as pure functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidewright.launch.environment import (
    DENIED,
    RANK_VARIABLES,
    THREAD_LIMITS,
    RankPosition,
    rank_environment,
    submitted_environment,
)

SEAT = RankPosition(
    rank=3,
    local_rank=1,
    world_size=6,
    local_world_size=2,
    group_rank=1,
    group_world_size=3,
    master_addr="n0",
    master_port=29501,
)
NAMES = st.one_of(
    st.text("ABCXYZ_", min_size=1), st.sampled_from(sorted(DENIED | RANK_VARIABLES)), st.just("TIDE_TOKEN")
)


def made(given_env, devices=None):
    return rank_environment(
        given_env, devices or {}, SEAT, job=7, name="n", attempt=2, step_file="/s", mark="m"
    )  # fmt: skip


@given(st.dictionaries(NAMES, st.text()))
def test_what_is_not_the_submitters_to_pass_on_stays_behind(environ):
    kept = submitted_environment(environ)
    assert kept.items() <= environ.items()
    assert not any(name.startswith("TIDE_") or name in DENIED | RANK_VARIABLES for name in kept)
    dropped = environ.keys() - kept.keys()
    assert all(name.startswith("TIDE_") or name in DENIED | RANK_VARIABLES for name in dropped)


@given(st.dictionaries(NAMES, st.text()))
def test_rank_variables_win(environ):
    env = made(environ)
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("3", "1", "6", "2")
    assert (env["GROUP_RANK"], env["NODE_RANK"], env["GROUP_WORLD_SIZE"]) == ("1", "1", "3")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("n0", "29501")
    assert (env["TIDE_JOB_ID"], env["TIDE_ATTEMPT"], env["TORCHELASTIC_RESTART_COUNT"]) == ("7", "2", "1")
    assert env["PATH"]


def test_thread_limits_are_limits():
    limit = {"OMP_NUM_THREADS": "4"}
    assert made({"OMP_NUM_THREADS": "2"}, limit)["OMP_NUM_THREADS"] == "2"
    assert made({"OMP_NUM_THREADS": "64"}, limit)["OMP_NUM_THREADS"] == "4"
    assert made({"OMP_NUM_THREADS": "0"}, limit)["OMP_NUM_THREADS"] == "4"
    assert made({"OMP_NUM_THREADS": "x"}, limit)["OMP_NUM_THREADS"] == "4"


def test_one_limit_of_the_users_is_a_limit_for_all_libraries() -> None:
    """A program that was given one thread computes other last bits with two."""
    slot = dict.fromkeys(THREAD_LIMITS, "4")
    assert {made({"OMP_NUM_THREADS": "1"}, slot)[name] for name in THREAD_LIMITS} == {"1"}
    found = made({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "2"}, slot)
    assert [found[name] for name in THREAD_LIMITS] == ["1", "2", "1", "1"]
    assert {made({"MKL_NUM_THREADS": "2"}, slot)[name] for name in THREAD_LIMITS} == {"2", "4"}
