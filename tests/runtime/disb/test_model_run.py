"""DISB on the device model: every row on small devices, and what must hold between rows."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from tests.runtime.reef_data import needs_profiles, reef_model
from tidewright.runtime.device_model.costs import ModelCosts
from tidewright.runtime.device_model.kernels import profiled_chain
from tidewright.runtime.device_model.published_rows import ROWS
from tidewright.runtime.device_model.synthetic import SYNTHETIC_MODELS, synthetic_model
from tidewright.runtime.disb.model_run import ModelledDevice, model_table, run_matrix, run_row
from tidewright.runtime.disb.result import DisbMatrix, DisbResult, over_dedicated
from tidewright.runtime.disb.workload import DisbClient, DisbLoad, DisbTask, DisbWorkload, load_workload
from tidewright.runtime.padding.reef_models import DISB_TO_REEF

BY_LABEL = {row.label: row for row in ROWS}
COSTS = ModelCosts()


def synthetic(padded: bool = True) -> ModelledDevice:
    models = {
        name: profiled_chain(synthetic_model(name), node_start_ns=COSTS.node_start_ns) for name in SYNTHETIC_MODELS
    }
    device = ModelledDevice("made-up", 60, models, COSTS)
    if padded:
        device.table = model_table(device, ("vgg19-imagenet", "resnet152-imagenet"), (8, 16), times=1)
    return device


@cache
def rows_of_a() -> dict[str, DisbResult]:
    """Half a second of workload A on made-up kernels, by row."""
    return {result.row: result for result in run_matrix(synthetic(), [load_workload("A")], seconds=0.5)}


def test_equal_runs_are_equal_and_seeds_matter_for_poisson_only() -> None:
    gate = BY_LABEL["gate"]
    again = run_row(synthetic(), load_workload("A"), gate, seconds=0.5)
    assert again == rows_of_a()["gate"]
    device = synthetic(padded=False)
    runs = [run_row(device, load_workload("E"), gate, seconds=0.04, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_real_time_work_of_the_dedicated_device_takes_its_time_alone() -> None:
    found = rows_of_a()["RT-only"]
    assert found.rt_increase == 0.0 and found.be_per_second == 0.0 and found.rt.count == 50


def test_preempting_rows_keep_latency_and_do_best_effort_work() -> None:
    found = rows_of_a()
    for label in ("REEF-reset", "REEF", "gate", "gate+padding", "Orion"):
        assert found[label].rt_increase < found["SEQ"].rt_increase / 4, label
        assert found[label].be_per_second > 0, label
    assert found["gate"].rt_increase < 0.05
    assert found["gate+padding"].be_done >= found["gate"].be_done
    assert found["REEF"].be_done >= found["REEF-reset"].be_done


def test_only_resets_waste_work() -> None:
    assert {label for label, result in rows_of_a().items() if result.preemption.wasted > 0} == {"REEF-reset", "REEF"}


def test_the_deeper_the_queue_the_longer_the_preemption() -> None:
    found = rows_of_a()
    assert 0 < found["REEF-N"].preemption.latency.p50 < found["XSched-Lv1"].preemption.latency.p50
    assert found["REEF-N"].rt_increase < found["XSched-Lv1"].rt_increase


def test_preemption_by_the_gate_lasts_at_most_the_longest_cta() -> None:
    device = synthetic(padded=False)
    longest = max(kernel.cta_ns[-1] for kernel in device.chains["resnet152-imagenet"].kernels)
    assert 0 < rows_of_a()["gate"].preemption.latency.max <= (longest + COSTS.flag_ns) / 1000


@pytest.mark.parametrize("label", list(BY_LABEL))
def test_work_is_accounted_for(label: str) -> None:
    found = rows_of_a()[label]
    assert 0 < found.busy <= 1 and 0 <= found.preemption.wasted < 1
    for client in found.clients:
        assert 0 <= client.launched - client.completed <= 1
        assert client.latency.count == client.completed
    rt = found.clients[0]
    # 50 launches are intended in half a second.
    assert rt.launched + rt.dropped in (50, 49)


def test_the_open_loop_makes_every_intended_launch() -> None:
    device = synthetic(padded=False)
    found = {
        loop: run_row(device, load_workload("A"), BY_LABEL["SEQ"], seconds=0.5, loop=loop)  # type: ignore[arg-type]
        for loop in ("closed", "open")
    }
    assert found["closed"].dropped > 0 and found["open"].dropped == 0
    assert found["open"].clients[0].launched == 50
    # What the closed loop hides: requests that were never made.
    assert found["closed"].rt_per_second < 0.8 * found["open"].rt_per_second


def test_without_a_table_nothing_is_padded() -> None:
    device = synthetic(padded=False)
    padded, plain = (
        run_row(device, load_workload("A"), BY_LABEL[label], seconds=0.3) for label in ("gate+padding", "gate")
    )
    assert msgspec.structs.replace(padded, row="gate") == plain


def test_the_table_of_the_model_is_no_measurement() -> None:
    table = synthetic().table
    assert table is not None and not table.measured and table.fingerprint.device.startswith("model of")
    assert len(table.pairs) == 8


@needs_profiles
def test_chains_of_reefs_profiles_take_the_latency_that_was_published() -> None:
    for name in ("vgg", "resnet152", "inception", "bert"):
        device = ModelledDevice("mi50", 60, {name: profiled_chain(reef_model(name), node_start_ns=COSTS.node_start_ns)})
        assert device.standalone_ns(name) == pytest.approx(reef_model(name).latency_us * 1000, rel=0.02)


@needs_profiles
def test_rows_on_reefs_profiles_are_ordered_as_published() -> None:
    """SEQ and STREAM cost real-time latency, reset and gate hardly any; padding adds throughput (REEF, GPreempt)."""
    chains = {d: profiled_chain(reef_model(r), node_start_ns=COSTS.node_start_ns) for d, r in DISB_TO_REEF.items()}
    device = ModelledDevice("mi50", 60, chains, COSTS)
    labels = ("RT-only", "SEQ", "STREAM", "REEF-reset", "REEF", "gate")
    results = run_matrix(device, [load_workload("C")], [BY_LABEL[label] for label in labels], seconds=0.2)
    over = {result.row: over_dedicated(DisbMatrix("m", results), result) or 0.0 for result in results}
    done = {result.row: result.done for result in results}
    assert over["SEQ"] > 1 and over["STREAM"] > 1
    assert max(over["REEF-reset"], over["REEF"], over["gate"]) < 0.03
    assert done["RT-only"] < done["SEQ"] < done["REEF-reset"] < done["REEF"] < done["STREAM"]


@pytest.mark.parametrize("loop", ["closed", "open"])
def test_a_graph_of_models_runs_each_as_often_as_what_it_follows(loop: str) -> None:
    load = DisbLoad("periodic", frequency=100)
    after = DisbLoad("dependent", prev_task_ids=("first_rt",))
    client = DisbClient("vgg19-imagenet")
    tasks = (DisbTask("first_rt", load, client), DisbTask("second_rt", after, client))
    workload = DisbWorkload(1, tasks, "graph")
    found = run_row(synthetic(padded=False), workload, BY_LABEL["gate"], seconds=0.5, loop=loop)  # type: ignore[arg-type]
    first, second = found.clients
    assert first.completed > 40 and first.completed - 1 <= second.completed <= first.completed
