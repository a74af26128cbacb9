"""Traces of others, and files that are packed, damaged, out of order or wrong: mistakes with their lines, no row lost unsaid."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tidewright.base.errors import UsageError
from tidewright.base.units import SECOND
from tidewright.policy.registry import make
from tidewright.sim import stream
from tidewright.sim.clusters import load_cluster
from tidewright.sim.rate_files import load_rates
from tidewright.sim.run import Options, Simulation
from tidewright.sim.stream import open_lines
from tidewright.sim.trace import load_of, make_trace, with_estimates, with_load, without_estimates
from tidewright.sim.traces import load_trace

OURS = "submit,duration,devices"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"
HELIOS = "job_id,user,vc,jobname,gpu_num,cpu_num,state,submit_time,duration"
PAI = "job_id,user,num_gpu,num_cpu,submit_time,duration,num_inst,gpu_type"


def said(path: Path, lines: list[str], name: str = "csv", more: str = "") -> str:
    """What is wrong with a file of these lines."""
    path.write_text("\n".join([*lines, ""]))
    with pytest.raises(UsageError) as caught:
        load_trace(f"{name}:{path}{more}", 8)
    assert caught.value.remedy
    return caught.value.message.replace(str(path), "F")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0,10,1", "5,0,1"], "F:3: duration: 0 s is not above 0"),
        (["0,-10,1"], "F:2: duration: -10 s is not between 0 and a century"),
        (["nan,10,1"], "F:2: submit: nan s is not between 0 and a century"),
        (["0,inf,1"], "F:2: duration: inf s is not between 0 and a century"),
        (["0,10,nan"], "F:2: devices: nan is not a whole number of devices between 1 and 32768"),
        (["0,10,inf"], "F:2: devices: inf is not a whole number"),
        (["0,10,0"], "F:2: devices: 0 is not a whole number"),
        (["0,10,1.5"], "F:2: devices: 1.5 is not a whole number"),
        (["0,10"], "F:2: devices: missing"),
        ([], "F holds no jobs"),
    ],
)
def test_mistakes_of_rows(tmp_path: Path, rows: list[str], message: str) -> None:
    assert message.split("32768")[0] in said(tmp_path / "a.csv", [OURS, *rows])


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"")
    with pytest.raises(UsageError, match="is empty"):
        load_trace(str(tmp_path / "a.csv"), 8)
    (tmp_path / "b.csv").write_bytes(b"\x80\x81\xff")
    with pytest.raises(UsageError, match="it is not text"):
        load_trace(str(tmp_path / "b.csv"), 8)
    with pytest.raises(UsageError, match="No such file"):
        load_trace(str(tmp_path / "c.csv"), 8)


def test_two_rows_of_one_id(tmp_path: Path) -> None:
    rows = ["7,0,10,1", "8,5,10,1", "7,9,10,1"]
    assert said(tmp_path / "a.csv", [f"job_id,{OURS}", *rows]) == "F:4: id: 7 is the id of line 2, too"
    names = tmp_path / "b.csv"
    names.write_text(f"name,{OURS}\ntrain,0,10,1\ntrain,5,10,1\n")
    assert load_trace(str(names), 8).names == ("train", "train"), "a name is not an id"


def test_rows_out_of_order_are_sorted_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id,{OURS}\na,20,10,1\nb,0,10,1\nc,5,10,1\nd,3,10,1\n")
    trace = load_trace(str(path), 8)
    assert trace.ids == ("b", "d", "c", "a")
    assert trace.remarks == ("a: 2 rows were not in order of submission; all rows were sorted",)
    result = Simulation(trace, load_cluster("1x2"), make("fifo")).run()
    assert result.remarks == trace.remarks


@pytest.mark.parametrize(
    ("name", "header", "rows", "devices"),
    [
        ("tiresias", TIRESIAS, ["0,4,30,9,vgg,100,0", "1,1,31,9,vgg,0,0", "2,0,32,9,vgg,5,0"], 4),
        (
            "helios",
            HELIOS,
            ["0,u,vcA,j,4,1,COMPLETED,30,100", "1,u,vcA,j,1,1,FAILED,31,0", "2,u,vcA,j,0,8,FAILED,31,9"],
            4,
        ),
        ("pai", PAI, ["0,u,2,8,30,100,2,MISC", "1,u,1,4,31,0,1,V100", "2,u,0,4,31,9,1,CPU"], 4),
    ],
)
def test_published_formats_leave_rows_without_work_out_and_count_them(
    tmp_path: Path, name: str, header: str, rows: list[str], devices: int
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("\n".join([header, *rows, ""]))
    trace = load_trace(f"{name}:{path}", 8)
    assert (trace.devices.tolist(), trace.duration.tolist()) == ([devices], [100 * SECOND])
    assert trace.remarks == ("log: 2 rows have no run time or no devices and are left out",)


@pytest.mark.parametrize(("devices", "instances"), [(65_536, 65_536), (65_536, 32_768), (32_769, 2)])
def test_devices_times_instances_beyond_what_a_job_may_have_are_refused(
    tmp_path: Path, devices: int, instances: int
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{PAI}\n\n0,u,8192,8,5,100,8,MISC\n2,u,0,8,5,0,8,MISC\n1,u,{devices},8,30,100,{instances},MISC\n")
    with pytest.raises(UsageError, match=rf"log\.csv:5: devices: {devices * instances}, those of all instances"):
        load_trace(f"pai:{path}", 8)


@pytest.mark.parametrize(("name", "header"), [("tiresias", TIRESIAS), ("helios", HELIOS), ("pai", PAI)])
def test_published_formats_name_lines_and_missing_columns(tmp_path: Path, name: str, header: str) -> None:
    path = tmp_path / "log.csv"
    assert "F:1: no column for" in said(path, ["a,b,c"], name)
    cells = {
        "job_id": "1",
        "num_gpu": "2",
        "gpu_num": "2",
        "submit_time": "-5",
        "duration": "x",
        "vc": "v",
        "user": "u",
    }
    wrong = said(path, [header, ",".join(cells.get(column, "1") for column in header.split(","))], name)
    assert ("F:2: submit: -5 s" in wrong and "F:2: duration: 'x' cannot be read" in wrong) or "not a duration" in wrong
    with pytest.raises(UsageError, match="no setting 'speed'"):
        load_trace(f"{name}:{path},speed=1", 8)


def test_virtual_clusters_of_helios(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{HELIOS}\n0,u,a,j,1,1,DONE,30,100\n1,u,b,j,2,1,DONE,40,100\n2,u,b,j,3,1,DONE,60,100\n")
    trace = load_trace(f"helios:{path},vc=b", 8)
    assert (trace.devices.tolist(), trace.submit.tolist(), trace.ids) == ([2, 3], [0, 20 * SECOND], ("1", "2"))
    with pytest.raises(UsageError, match="no virtual cluster 'c'"):
        load_trace(f"helios:{path},vc=c", 8)


def gavel_line(job: str = "LM (batch size 5)", steps: str = "1000", scale: str = "2", arrival: str = "60.5") -> str:
    return "\t".join([job, "python main.py", "lm", "--steps", "1", steps, scale, "1", "-1.000000", arrival])


def test_gavel_counts_in_steps(tmp_path: Path) -> None:
    rates = tmp_path / "rates.json"
    rates.write_text(json.dumps({"v100": {"('LM (batch size 5)', 2)": {"null": 8.0}}, "k80": {}}))
    path, more = tmp_path / "g.trace", f",throughputs={rates}"
    path.write_text(f"{gavel_line()}\n{gavel_line(arrival='10')}\n")
    trace = load_trace(f"gavel:{path}{more}", 8)
    assert (trace.submit.tolist(), trace.duration.tolist()) == ([0, 50_500_000], [125 * SECOND] * 2)
    assert trace.step_us is not None and trace.step_us.tolist() == [125_000.0] * 2
    bad = [
        gavel_line("BERT"), gavel_line(steps="many"), gavel_line(arrival="nan"), gavel_line(steps="-1"), "a\tb", "\t" * 6,
        gavel_line(scale="4"),
    ]  # fmt: skip
    wrong = said(path, [gavel_line(), *bad], "gavel", more).splitlines()
    assert [line.partition(" ")[0] for line in wrong] == [f"F:{at}:" for at in range(2, 9)]
    assert "seven are the layout of before 2020" in wrong[5]
    assert "F:1: 1 columns between tabs" in said(path, ["x" * 200_000], "gavel", more)
    path.write_text(gavel_line("GAN"))
    with pytest.raises(UsageError, match="no throughput of GAN") as caught:
        load_trace(f"gavel:{path}{more}", 8)
    assert caught.value.remedy.startswith("a trace of Gavel has ten columns between tabs")
    nowhere = said(path, [gavel_line("GAN")], "gavel", f"{more},kind=V100")
    assert "no throughput of GAN on" in nowhere and "devices of kind v100" in nowhere
    assert "no throughputs of 'a100'" in said(path, [gavel_line()], "gavel", f"{more},kind=a100")
    for text in ("[]", "{", '{"v100": {"x": {"null": 1}}}', '{"v100": {"(\'x\', 1)": {}}}'):
        rates.write_text(text)
        assert "holds no throughputs as Gavel keeps them" in said(path, [gavel_line()], "gavel", more)


def test_gavel_without_a_table_takes_the_packaged_one_and_the_fastest_of_several_kinds(tmp_path: Path) -> None:
    path = tmp_path / "g.trace"
    path.write_text("\n".join([gavel_line("A3C", scale="1"), gavel_line("LM (batch size 5)", scale="1")]) + "\n")
    per_s = {(row.workload, row.kind): row.per_s for row in load_rates("gavel").throughputs if row.devices == 1}
    for kinds in (("v100",), ("k80",), ("k80", "p100"), ("v100", "p100", "k80")):
        trace = load_trace(f"gavel:{path}{'' if kinds == ('v100',) else ',kind=' + '+'.join(kinds)}", 8)
        best = [max(per_s[model, kind] for kind in kinds) for model in ("A3C", "LM (batch size 5)")]
        assert trace.duration.tolist() == [round(1000 / speed * SECOND) for speed in best]
        assert [trace.spec(row).workload for row in range(2)] == ["A3C", "LM (batch size 5)"]
        assert f"{', '.join(kinds)}; with --rates gavel" in trace.remarks[-1]


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.ZstdCompressor().compress,
    "two.zst": lambda text: b"".join(zstandard.ZstdCompressor().compress(part) for part in (text[:9000], text[9000:])),
    "two.gz": lambda text: gzip.compress(text[:9000]) + gzip.compress(text[9000:]),
    "two.xz": lambda text: lzma.compress(text[:9000]) + bytes(4) + lzma.compress(text[9000:]),
}  # fmt: skip
TEXT = (OURS + "\n" + "".join(f"{at},{at % 977 + 1},1\n" for at in range(20_000))).encode()


@pytest.mark.parametrize("ending", PACKERS)
def test_packed_files_are_read_as_streams(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_LINES", 1 << 12)
    path = tmp_path / f"jobs.csv.{ending}"
    path.write_bytes(PACKERS[ending](TEXT))
    heard: list[tuple[int, int]] = []
    trace = load_trace(str(path), 8, lambda done, total: heard.append((done, total)))
    assert (len(trace), trace.name.partition(".")[0]) == (20_000, "jobs")
    assert len(heard) == 5 and heard == sorted(heard) and heard[-1][1] == path.stat().st_size
    path.write_bytes(PACKERS[ending](TEXT)[:-30])
    with pytest.raises(UsageError, match="damaged or cut off"):
        load_trace(str(path), 8)
    path.write_bytes(b"submit,duration,devices\n0,1,1\n")
    with pytest.raises(UsageError, match="damaged"):
        load_trace(str(path), 8)


@pytest.mark.parametrize("ending", ["gz", "xz", "zst"])
@pytest.mark.parametrize("damage", [b"garbage", b"?", b"a longer line that is packed by nothing\n" * 99])
def test_what_follows_the_first_part_of_a_packed_file_is_not_passed_over(
    tmp_path: Path, ending: str, damage: bytes
) -> None:
    path = tmp_path / f"jobs.csv.{ending}"
    first, second = PACKERS[ending](TEXT[:9000]), PACKERS[ending](TEXT[9000:])
    for content in (first + damage, first + damage + second, first + bytes([second[0] ^ 255]) + second[1:]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="damaged"):
            load_trace(str(path), 8)
    path.write_bytes(first + second)
    assert len(load_trace(str(path), 8)) == 20_000


def test_a_large_file_is_never_in_memory_as_text(tmp_path: Path) -> None:
    """80 MB that pack into little: what is held at any time is some buffers and a line."""
    import tracemalloc

    path = tmp_path / "large.csv.zst"
    line = b"1,2,3" + b" " * 995 + b"\n"
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        for _ in range(80):
            packed.write(line * 1000)
    tracemalloc.start()
    with open_lines(path) as lines:
        count = sum(1 for _ in lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 80_000
    assert peak < 60 << 20


def test_jobs_that_no_pool_could_hold_are_refused_and_say_why(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{OURS},type\n0,10,1,\n1,10,99,\n2,10,1,tpu\n3,10,2,GPU\n")
    result = Simulation(load_trace(str(path), 8), load_cluster("1x8"), make("fifo"), Options()).run()
    assert (result.completed, result.refused, result.unfinished) == (2, 2, 0)
    assert sum(result.refusals.values()) == 2 and all(result.refusals)


def test_load_scales_the_times_between_submissions() -> None:
    trace = load_trace("synthetic:jobs=2000,load=0.9,max=1h", 64)
    assert load_of(trace, 64) == pytest.approx(0.9, rel=0.05)
    loaded = with_load(trace, 1.5, 64)
    assert load_of(loaded, 64) == pytest.approx(1.5, rel=1e-6)
    gaps = np.diff(loaded.submit) / np.maximum(np.diff(trace.submit), 1)
    assert gaps[np.diff(trace.submit) > 0].mean() == pytest.approx(load_of(trace, 64) / 1.5, rel=1e-3)
    at_once = make_trace("once", np.zeros(3), np.ones(3), np.ones(3, np.int64))
    with pytest.raises(UsageError, match="submitted at once"):
        with_load(at_once, 1.0, 4)
    for load in (0.0, -1.0, float("nan"), 1e9):
        with pytest.raises(UsageError, match="load"):
            with_load(trace, load, 64)


def test_estimates_can_be_withheld() -> None:
    trace = load_trace("synthetic:jobs=50", 64)
    assert not without_estimates(trace).expected.any()
    assert without_estimates(trace).spec(0).expected_us == 0
    assert (with_estimates(trace, 0.5, 1).expected != trace.expected).any()


@pytest.mark.parametrize(("submit", "duration"), [(np.nan, 1.0), (0.0, 0.0), (0.0, -1.0), (0.0, np.inf)])
def test_no_trace_holds_what_cannot_run(submit: float, duration: float) -> None:
    with pytest.raises(UsageError, match="row 2"):
        make_trace("bad", np.array([0.0, submit]), np.array([1.0, duration]), np.ones(2, np.int64))
