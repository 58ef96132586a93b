"""The benchmarks' own parts: records, reports, errors, timing, and one small run on the CPU."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import subprocess
import time

import pytest
import torch
from support.process import ROOT
from support.records import gpu_record

import torch_sgemm
from benchmarks import (
    accuracy,
    errors,
    machine,
    measure,
    problems,
    record,
    seeds,
    suite,
    tables,
    timing,
)
from benchmarks.__main__ import main
from benchmarks.distributions import DISTRIBUTIONS
from benchmarks.problems import Problem
from benchmarks.session import check_output
from benchmarks.sides import Side, sgemm_side, torch_side

CPU = torch.device("cpu")


def measured(kernel: str = "naive_32", **changes) -> dict:
    """A row as ``ladder`` records it."""
    row = Problem.square(64).as_dict() | {"size": 64, "kernel": kernel, "correct": True}
    row |= {"kernel_tflops": 1.5, "torch_tflops": 3.0, "percent_of_torch": 50.0, "sm_mhz": 1980.0}
    row |= {"error_max": 2.0, "error_mean": 0.3, "torch_error_max": 2.0, "torch_error_mean": 0.3}
    return row | {"error_bound": 40.0} | changes


def ladder_record(**changes) -> dict:
    return gpu_record("ladder", [measured()], **changes)


# --- records --------------------------------------------------------------------------------


def test_digest_is_what_the_shell_prints():
    command = "find csrc -type f | sort | xargs sha256sum | sha256sum"
    environment = os.environ | {"LC_ALL": "C"}
    shell = subprocess.check_output(command, shell=True, cwd=ROOT, env=environment, text=True)
    assert record.csrc_digest() == shell.split()[0]


def test_digest_follows_names_and_contents(tmp_path):
    (tmp_path / "csrc" / "sub").mkdir(parents=True)
    (tmp_path / "csrc" / "a.h").write_text("1")
    first = record.csrc_digest(tmp_path)
    inner = hashlib.sha256(b"1").hexdigest() + "  csrc/a.h\n"
    assert first == hashlib.sha256(inner.encode()).hexdigest()
    (tmp_path / "csrc" / "sub" / "b.h").write_text("")
    assert record.csrc_digest(tmp_path) != first


def test_record_round_trip_keeps_what_is_not_finite(tmp_path):
    path = tmp_path / "new" / "r.json"
    original = ladder_record(rows=[measured(error_max=math.nan, error_mean=math.inf)])
    record.save(original, path)
    json.loads(path.read_text(), parse_constant=pytest.fail)  # strict JSON
    row = record.load(path)["rows"][0]
    assert math.isnan(row.pop("error_max")) and row.pop("error_mean") == math.inf
    expected = original["rows"][0]
    assert row == {key: value for key, value in expected.items() if key in row}
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]


def test_failed_save_leaves_the_old_record(tmp_path):
    path = record.save(ladder_record(), tmp_path / "r.json")
    before = path.read_text()
    with pytest.raises(TypeError):
        record.save(ladder_record(rows=[object()]), path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_latest_gpu_record(tmp_path):
    old, new = ladder_record(), ladder_record(date="2025-01-01 00:00 UTC")
    new["machine"] = new["machine"] | {"slug": "newer"}
    cpu = ladder_record(date="2026-01-01 00:00 UTC")
    cpu["machine"] = cpu["machine"] | {"device": "cpu", "slug": "cpu"}
    sustained = ladder_record(date="2026-01-01 00:00 UTC", options={"sustained": True})
    assert record.latest_gpu("ladder", tmp_path) is None
    paths = [record.default_path(r, tmp_path) for r in (old, new, cpu, sustained)]
    assert len(set(paths)) == 4
    for r, path in zip((old, new, cpu, sustained), paths, strict=True):
        record.save(r, path)
    assert record.latest_gpu("ladder", tmp_path)["date"] == new["date"]
    assert record.latest_gpu("ladder", tmp_path, "test-gpu")["date"] == old["date"]
    assert record.latest_gpu("seeds", tmp_path) is None


def test_a_folder_for_records_is_made(tmp_path):
    """A path without .json was once a file, which the next command wrote over."""
    found, new = ladder_record(), tmp_path / "new" / "runs.d"
    check_output(new)
    assert new.is_dir()
    assert record.output_path(found, new) == record.default_path(found, new)
    assert record.output_path(found, tmp_path / "r.json") == tmp_path / "r.json"
    assert record.output_path(found, None) == record.default_path(found)


def test_a_folder_that_is_a_file_is_refused_before_measuring(tmp_path, capsys):
    path = tmp_path / "record"
    path.write_text("mine")
    for output in (path, path / "r.json", path / "r.jsonl.gz"):
        assert main(["call", "--device", "cpu", "--size", "4", "--output", str(output)]) == 2
        shown = " ".join(capsys.readouterr().out.split())
        assert "ends in .json" in shown and "Microseconds" not in shown
    assert path.read_text() == "mine"


def test_provenance_names_everything():
    line = record.provenance(ladder_record())
    for part in ("2024-01-02", "Test GPU", "1.2", "1980", "700 W", "2.10", "13.0", "0.1", "a" * 12):
        assert part in line


# --- the documents and the table ------------------------------------------------------------


def test_documents_name_rows_of_the_table():
    data = seeds.load()
    names = {row.name for row in torch_sgemm.kernels()}
    assert {r["kernel"] for r in data["rows"]} <= names
    assert {r["document"] for r in data["rows"]} == set(data["documents"])
    for r in data["rows"]:
        assert r["author_gflops"] is None or 0 < r["author_gflops"] < 2e4
        assert r["author_gpu"] == data["documents"][r["document"]]["gpu"]


def test_documents_agree_on_their_cublas():
    share = {r["author_kernel"]: r for r in seeds.load()["rows"] if r["author_cublas_gflops"]}
    best = share["Sgemm<128,8,128,8,8>"]
    assert best["author_gflops"] / best["author_cublas_gflops"] == pytest.approx(0.935, abs=5e-4)
    vector = share["sgemmVectorize"]
    assert vector["author_gflops"] / vector["author_cublas_gflops"] == pytest.approx(
        0.902, abs=1e-3
    )


def test_document_problems_are_runnable_sizes():
    for r in seeds.load()["rows"]:
        problem = seeds.problem_of(r)
        assert problem.in_place == (r["document"] == "000")
        assert problem.flops > 0


def test_cases_are_well_formed():
    cases = problems.load_cases()
    assert len(cases) > 90
    for group, _, p in cases:
        assert group and min(p.m, p.n, p.k, p.batch) >= 1
        assert p.ops in {"NN", "NT", "TN", "TT"}


# --- errors ---------------------------------------------------------------------------------


def reference(problem: Problem, seed: int = 3) -> tuple[errors.Reference, problems.Pool]:
    pool = problems.make_pool(problem, CPU, seed)
    return errors.Reference(problem, pool.sets[0], seed), pool


def spoilt(problem: Problem, value: float) -> Side:
    """torch's product with one column off, so that every sampled row shows it."""
    good = torch_side(problem)

    def run(operands):
        good.run(operands)
        operands.c[..., 0] = value

    return Side("spoilt", run)


CHECKED = [
    Problem.square(65),
    Problem(33, 17, 129, "TN"),
    Problem(9, 31, 40, "NT", batch=20),
    Problem(40, 24, 64, alpha=1.0, beta=0.5),
    Problem(100, 1, 1, "TT"),
]


@pytest.mark.parametrize("problem", CHECKED, ids=lambda p: p.label)
def test_error_of_a_good_product_is_within_the_bound(problem):
    check, _ = reference(problem)
    found = check.errors(torch_side(problem))
    assert found.max <= errors.bound(problem.k)
    assert 0 <= found.mean <= found.max


@pytest.mark.parametrize("problem", CHECKED, ids=lambda p: p.label)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e3])
def test_error_of_a_bad_product_is_not(problem, value):
    check, _ = reference(problem)
    assert not check.errors(spoilt(problem, value)).max <= errors.bound(problem.k)


def test_a_product_that_is_not_written_is_wrong():
    check, _ = reference(Problem.square(32))
    assert not check.errors(Side("lazy", lambda operands: None)).max <= errors.bound(32)


def test_beta_reads_the_same_c_each_time():
    problem = Problem(40, 24, 64, alpha=1.0, beta=0.5)
    check, _ = reference(problem)
    side = torch_side(problem)
    assert check.errors(side) == check.errors(side)


def test_error_where_nothing_is_added_up():
    zero = torch.zeros(1, 1, dtype=torch.float64)
    assert errors.in_units(torch.zeros(1, 1), zero, zero) == (0, 0)
    assert errors.in_units(torch.full((1, 1), 1e-30), zero, zero).max == math.inf


def test_wrong_rows_are_named_and_fail(capsys):
    assert tables.report_failures([measured()]) == 0
    bad = [
        measured(),
        measured("wrong", correct=False),
        measured("broken", correct=False, failed="why"),
    ]
    assert tables.report_failures(bad) == 1
    assert tables.verdict(bad[1]) == "WRONG" and tables.verdict(bad[2]) == "failed"


# --- operands and timing --------------------------------------------------------------------


@pytest.mark.parametrize("problem", CHECKED, ids=lambda p: p.label)
def test_both_sides_compute_the_same_layouts(problem):
    a, b, c = problems.make_pool(problem, CPU, 5).sets[0]
    head = (problem.batch,) if problem.batch > 1 else ()
    assert a.shape == (*head, problem.m, problem.k) and b.shape == (*head, problem.k, problem.n)
    assert a.mT.is_contiguous() if problem.ops[0] == "T" else a.is_contiguous()
    assert b.mT.is_contiguous() if problem.ops[1] == "T" else b.is_contiguous()
    before = c.clone()
    torch_side(problem).run(problems.Operands(a, b, c))
    theirs = c.clone()
    c.copy_(before)
    sgemm_side(problem, "aten").run(problems.Operands(a, b, c))
    torch.testing.assert_close(c, theirs)


def test_operands_rotate_past_the_cache():
    problem = Problem.square(64)
    l2 = 10 * problem.bytes
    pool = problems.make_pool(problem, CPU, 1, l2)
    assert pool.cold and len(pool.sets) * problem.bytes >= problems.L2_MULTIPLE * l2
    starts = {x.data_ptr() for operands in pool.sets for x in operands}
    assert len(starts) == 3 * len(pool.sets)
    assert all(start % 64 == 0 for start in starts)
    tiny = problems.make_pool(Problem.square(1), CPU, 1, l2)
    assert not tiny.cold and len(tiny.sets) == problems.MAX_SETS


def test_operands_follow_the_seed():
    first, again, other = (
        problems.make_pool(Problem.square(9), CPU, s).sets[0].a for s in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert -1 <= first.min() < 0 < first.max() <= 1


def test_sides_take_turns():
    order = []
    sides = [Side(name, lambda _, name=name: order.append(name)) for name in ("a", "b")]
    pool = problems.make_pool(Problem.square(1), CPU, 1)
    found = timing.compare(sides, pool, timing.Options(rounds=3, replay=1e-9))
    assert [len(t.seconds) for t in found] == [3, 3]
    turns = "".join(name for name, _ in itertools.groupby(order))
    assert turns.endswith("ababab")


def test_cpu_times_are_times():
    sides = [Side("short", lambda _: None), Side("long", lambda _: time.sleep(0.02))]
    pool = problems.make_pool(Problem.square(1), CPU, 1)
    short, long = timing.compare(sides, pool, timing.Options(rounds=2))
    assert 0.02 <= long.best <= long.median < 1
    assert short.median < 0.01


def test_quantiles():
    found = timing.Timing(seconds=[4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.median, found.best) == (3.0, 1.0)
    assert found.quantile(0.1) == pytest.approx(1.4) and found.quantile(0.9) == pytest.approx(4.6)
    assert timing.Timing(seconds=[7.0]).quantile(0.9) == 7.0


def test_geomean():
    assert measure.geomean([1, 4, 16]) == pytest.approx(4)
    assert measure.geomean([0.5, 2.0]) == pytest.approx(1)
    assert math.isnan(measure.geomean([]))


def test_suite_summary_leaves_out_what_is_wrong():
    rows = [
        measured("auto", group="x", label="x 1", percent_of_torch=50.0),
        measured("auto", group="x", label="x 2", percent_of_torch=200.0),
        measured("auto", group="y", label="y 1", percent_of_torch=900.0, correct=False),
    ]
    total, x, y = suite.summarise(rows)
    assert total["geomean"] == pytest.approx(1) and total["bad"] == 1 and total["cases"] == 2
    assert (x["worst"], x["worst_case"]) == (0.5, "x 1")
    assert y["cases"] == 0 and y["worst"] is None and math.isnan(y["geomean"])


def test_accuracy_summary_compares_long_sums():
    rows = [
        measured("x", distribution=name, k=k, error_mean=mean, torch_error_mean=theirs, good=good)
        for name, k, mean, theirs, good in (
            ("better", 64, 9.0, 1.0, False), ("better", 512, 1.0, 0.5, True),
            ("better", 8192, 1.0, 2.0, True), ("equal", 512, 0.0, 0.0, True),
            ("unfinished", 512, math.nan, 1.0, False),
        )
    ]  # fmt: skip
    expected = {"kernel": "x", "cases": 5, "bad": 2, "below": 1, "distributions": 3}
    assert accuracy.summarise(rows) == [expected]


def test_large_products_are_long_enough_for_long_windows():
    """The split family leaves sums in the tensor cores longer from 10,000 steps of a tile on."""
    size = accuracy.GPU_LARGE
    assert (size // 128) ** 2 * (size // 32) > 10_000
    gen = torch.Generator().manual_seed(1)
    for make, _ in accuracy.LARGE.values():
        a, b = make(24, gen)
        assert a.dtype == b.dtype == torch.float32 and a.size(1) == b.size(0) >= 24


def test_clocks_are_summarised():
    keys = list(machine.FIELDS)
    samples = [
        ["1900", "2600", "300.5", "50", "0x0000000000000004"],
        ["1980", "2600", "600.0", "55", "0x0000000000000001"],
        ["1980", "[N/A]", "400.0", "52", "0x0000000000000020"],
        ["19"],  # the line being written when the run ended
    ]
    found = machine.summarise(keys, samples)
    assert (found["sm_mhz"], found["memory_mhz"], found["power_w"]) == (1980, 2600, 600)
    assert found["temperature_c"] == 55
    assert found["throttle"] == ["power cap", "thermal (software)"]
    assert machine.summarise(keys, samples[3:]) == {}


def test_slug():
    assert machine.slug("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"


# --- a run ----------------------------------------------------------------------------------


def test_ladder_measures_every_row_of_the_table(tmp_path, capsys):
    path = tmp_path / "ladder.json"
    run = ["ladder", "--device", "cpu", "--size", "24", "--output", str(path), "--rounds", "2"]
    assert main(run) == 0
    found = record.load(path)
    assert [r["kernel"] for r in found["rows"]] == [
        r.name for r in torch_sgemm.kernels() if "cpu" in r.devices
    ]
    for r in found["rows"]:
        assert r["correct"] and r["error_max"] <= r["error_bound"]
        assert r["kernel_us"] > 0 and r["torch_us"] > 0
        assert r["kernel_us_best"] == r["kernel_us"] <= r["kernel_us_p10"] <= r["kernel_us_p90"]
    assert found["csrc_digest"] == record.csrc_digest()
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "No GPU is used" in shown
    assert "There is no GPU record yet" in shown or "Recorded on a GPU" in shown


def test_accuracy_measures_every_distribution(tmp_path):
    path = tmp_path / "accuracy.json"
    run = ["accuracy", "--device", "cpu", "--k", "7", "600", "--extent", "9", "5", "--output"]
    assert main([*run, str(path)]) == 0
    found = record.load(path)
    cases = [(r["distribution"], r["k"], r["kernel"]) for r in found["rows"]]
    assert cases == [(name, k, "ladder") for name in DISTRIBUTIONS for k in (7, 600)]
    for r in found["rows"]:
        assert (r["m"], r["n"]) == (9, 5) and r["correct"]
        assert 0 <= r["error_mean"] <= r["error_max"]
        assert r["good"] == (r["error_max"] <= max(2 * r["torch_error_max"], 8))
    assert found["summary"] == [pytest.approx(x) for x in accuracy.summarise(found["rows"])]
    assert [r["distribution"] for r in found["large"]] == list(accuracy.LARGE)
    assert all(r["correct"] and r["k"] >= accuracy.CPU_LARGE for r in found["large"])
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_every_row_of_the_table_runs_somewhere():
    """``ladder`` takes the rows that run on its device, and so reaches all of the table."""
    assert all(row.devices for row in torch_sgemm.kernels())


def test_unknown_rows_are_refused_with_the_nearest(capsys, tmp_path):
    path = tmp_path / "r.json"
    assert main(["ladder", "--device", "cpu", "--kernel", "naive_31", "--output", str(path)]) == 2
    assert "naive_32" in capsys.readouterr().out
    assert not path.exists()


def test_a_gpu_that_is_not_there_is_refused(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["ladder", "--device", "cuda"]) == 2
    assert "no GPU" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.parametrize("extra", [[], ["--sustained"]])
def test_ladder_on_a_gpu(tmp_path, extra):
    path = tmp_path / "ladder.json"
    rows = [row.name for row in torch_sgemm.kernels() if row.takes_float32]
    names = [rows[0], rows[-1]]
    run = ["ladder", "--device", "cuda", "--size", "64", "1024", "--kernel", *names]
    assert main([*run, "--output", str(path), *extra]) == 0
    found = record.load(path)
    assert len(found["rows"]) == 4 and all(r["correct"] for r in found["rows"])
    assert all(r["kernel_us"] > 0 and r["torch_us"] > 0 for r in found["rows"])
