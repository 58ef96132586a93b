"""The cost models' fit: what it reads, that it finds quantities again, what it writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from support.layouts import meta
from support.process import ROOT
from support.table import ANY, PROVEN_FAMILIES, Kernel, needs_cuda_build, rows

import torch_sgemm
from benchmarks import fit, plans
from benchmarks.__main__ import main
from benchmarks.choice import problems

MOST = 12  # quantities of a model
MACHINE = {"name": "a GPU", "slug": "nvidia-h200", "type": "cuda"}


@pytest.fixture
def library() -> Iterator[fit.Library]:
    """The library's quantities, which are as before behind the test."""
    before = torch.ops.sgemm._models()
    yield fit.Library()
    torch.ops.sgemm._set_models(before)


def test_models_have_a_dozen_quantities_each(library: fit.Library) -> None:
    names = [(q.model, q.name) for q in library.quantities]
    assert len(set(names)) == len(names) == len(library.values)
    assert all(0 < value < float("inf") for value in library.values)
    for model in library.models:
        assert 1 <= len(library.where([model])) <= MOST, model


def test_fitted_numbers_are_in_models_alone() -> None:
    """No time, and no share of something, is written into the sources of a prediction."""
    literal = re.compile(r"(?<![\w.])(?:\d+\.?\d*e-\d+|0\.\d+)\b")
    units = re.compile(r"\* 1e-[36]\b|e-[36] \*|/ 2\.0")
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix not in (".cpp", ".h", ".cu") or path.parent.name == "models":
            continue
        if path.name == "bound.h":  # of errors, which are proven
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = units.sub("", line.split("//")[0])
            found = [x for x in literal.findall(code) if float(x) not in (0.0, 0.5)]
            assert not found, f"{path.relative_to(ROOT)}:{number}: {found}"


@needs_cuda_build
def test_predictions_are_those_of_explain() -> None:
    """A row's time is that of its fastest plan."""
    for _, problem in problems(12, 3):
        lead = (problem.batch,) if problem.batch > 1 else ()
        a = meta(problem.m, problem.k, problem.ops[0], lead)
        b = meta(problem.k, problem.n, problem.ops[1], lead)
        found = torch_sgemm.explain(a, b, device=torch_sgemm.Device())
        explained = {verdict.name: verdict.seconds for verdict in found.verdicts}
        for row in rows(family=PROVEN_FAMILIES, takes_float32=ANY, tiles=False):
            if row.takes(problem.m, problem.n, problem.k):
                seconds = min(fit.predictions(row.name, fit.numbers(problem)))
                assert seconds == pytest.approx(explained[row.name], rel=1e-5) and seconds > 0


def synthetic(library: fit.Library, rows: list[str], count: int) -> dict:
    """A record of ``plans`` whose times are what the library predicts.

    Problems of few rows come with a packed B too, if a row reads its planes.
    """
    library.use()
    found = {"machine": MACHINE, "date": "2026-01-01", "problems": [], "rows": []}
    table = {row.name: row for row in torch_sgemm.kernels()}
    for kind, problem in problems(count, 7, 0, plans.KINDS):
        for packed in (False, True) if plans.has_packed(kind, problem) else (False,):
            names = [x for x in rows if plans.is_measured(table[x], problem)]
            names = [x for x in names if table[x].takes_planes] if packed else names
            about = {"kind": kind} | problem.as_dict() | ({"packed": True} if packed else {})
            found["problems"].append(about)
            for row in names:
                seconds = fit.predictions(row, fit.numbers(problem), None, packed)
                found["rows"] += [
                    {
                        "problem": len(found["problems"]) - 1,
                        "kernel": row,
                        "plan": i,
                        "plan_us": 1e6 * x,
                    }
                    for i, x in enumerate(seconds[:8].tolist())
                ]
    return found


def saved(found: dict, folder: Path) -> Path:
    """The file of such a record, said to be of the machine that the ladder was measured on."""
    measured = fit.record.latest_gpu("ladder")
    about = {name: measured[name] for name in ("machine", "csrc_digest", "timing", "options")}
    return fit.record.save(found | about, folder / "plans.jsonl.gz")


@needs_cuda_build
@pytest.mark.parametrize(
    "row",
    ["aten", "ieee_small", "split_fp16x3", "split_fp16x3_streamed"],
)
def test_a_fit_finds_a_model_again(library: fit.Library, row: str) -> None:
    """Times of a model with other quantities, each up to 1.6 times its order of magnitude."""
    start = numpy.array([q.start for q in library.quantities])
    library.values = start * numpy.exp(numpy.random.default_rng(1).uniform(-0.5, 0.5, len(start)))
    found = fit.cases([synthetic(library, [row], 105)])
    [(rows, models)] = fit.rows_of_models(library, found).items()
    assert rows == (row,)
    library.values = start
    library.use()
    assert fit.spread(found) > 0.08
    fit.fit(library, models, found)
    assert fit.spread(found) < 0.05


FEW, SPLIT = "split_fp16x3_few", "split_fp16x3"


def groups_of(library: fit.Library, *rows: str) -> dict[tuple[str, ...], list[str]]:
    """The models that a record of these rows fits, by rows."""
    return fit.rows_of_models(library, fit.cases([synthetic(library, list(rows), 105)]))


@needs_cuda_build
def test_a_row_belongs_to_its_most_special_model(library: fit.Library) -> None:
    """Predictions of few rows contain the split product's quantities, which stay as they are."""
    assert groups_of(library, SPLIT, FEW) == {(SPLIT,): ["Split"], (FEW,): ["SplitFew"]}
    assert groups_of(library, FEW) == {(FEW,): ["SplitFew"]}
    changed = fit.rows_changed(library, fit.probes())
    assert all(changed[model] for model in library.models if model != "Choice")
    assert FEW in changed["Split"] and changed["SplitFew"] == [FEW]


@needs_cuda_build
def test_a_fit_finds_the_model_of_few_rows_again(library: fit.Library) -> None:
    """With and without a packed weight, behind the model that it builds upon."""
    start = numpy.array([q.start for q in library.quantities])
    built = library.values.copy()
    where = library.where(["SplitFew"])
    drawn = numpy.random.default_rng(1).uniform(-0.5, 0.5, len(where))
    library.values[where] = start[where] * numpy.exp(drawn)
    found = fit.cases([synthetic(library, [FEW], 330)])
    assert len({case.packed for case in found}) == 2
    library.values[where] = start[where]
    library.use()
    assert fit.spread(found) > 0.08
    fit.fit(library, ["SplitFew"], found)
    assert fit.spread(found) < 0.05
    others = numpy.delete(library.values, where)
    assert numpy.array_equal(others, numpy.delete(built, where))


@needs_cuda_build
def test_packed_problems_are_predicted_with_planes(library: fit.Library) -> None:
    found = fit.cases([synthetic(library, [SPLIT, FEW], 105)])
    packed = [case for case in found if case.packed]
    assert {case.row for case in packed} == {SPLIT, FEW}
    for case in packed:  # the same plan takes less time
        of_case = case.row, case.numbers, case.device
        plain, planes = (
            dict(zip(fit.cuts(*of_case, given), fit.predictions(*of_case, given), strict=True))
            for given in (False, True)
        )
        both = plain.keys() & planes.keys()
        assert both and all(planes[cut] < plain[cut] for cut in both)
    assert fit.chosen_now(found) == []  # PyTorch's kernel is not among them
    assert max(abs(case.logs()).max() for case in found) < 1e-6


def test_a_batch_has_no_planes() -> None:
    about = fit.numbers(fit.Problem(4, 64, 64, batch=3))
    with pytest.raises(RuntimeError, match="'packed' is true; accepted: with one matrix"):
        fit.predictions(SPLIT, about, None, True)


@needs_cuda_build
def test_fit_writes_a_header(
    library: fit.Library, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    source = saved(synthetic(library, ["aten", "split_fp16x3"], 21), tmp_path)
    header = tmp_path / "gpu.h"
    assert main(["fit", "--record", str(source), "--output", str(header)]) == 0
    text = header.read_text()
    values = [float(x) for x in re.findall(r"^ {8}(\S+),  // \w+$", text, re.MULTILINE)]
    assert values == pytest.approx(torch.ops.sgemm._models(), rel=1e-3)
    assert text.count("// Small\n") == 1 and '{"double_buffer", 0.5' in text
    assert "split_fp16x3" in capsys.readouterr().out


@needs_cuda_build
def test_models_of_other_rows_stay_as_they_are(
    library: fit.Library, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    found = synthetic(library, ["aten", "ieee_small", "split_fp16x3"], 21)
    found["rows"] = [row | {"plan_us": 1.5 * row["plan_us"]} for row in found["rows"]]
    source = saved(found, tmp_path)
    before = torch.ops.sgemm._models()
    command = ["fit", "--record", str(source), "--output", str(tmp_path / "gpu.h"), "--kernel"]
    assert main([*command, "ieee_small"]) == 0
    changed = {
        quantity.model
        for quantity, old, new in zip(
            library.quantities, before, torch.ops.sgemm._models(), strict=True
        )
        if new != pytest.approx(old, rel=1e-3)
    }
    assert changed == {"Small"}
    assert main([*command, "ieee_large"]) == 2
    assert "--kernel ieee_large: accepted here: aten, ieee_small, split" in capsys.readouterr().out


def test_a_fit_without_a_record_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(fit.record, "RESULTS", tmp_path)
    assert main(["fit"]) == 2
    assert "there is no record; run python -m benchmarks plans first" in capsys.readouterr().out


def test_records_are_of_all_gpus_of_an_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(name: str, slug: str, arch: int, date: str, *kernels: str) -> None:
        machine = {"device": "cuda", "slug": slug, "arch": arch}
        rows = [{"kernel": kernel} for kernel in kernels]
        found = {"command": name, "machine": machine, "date": date, "options": {}, "rows": rows}
        fit.record.save(found, fit.record.default_path(found, tmp_path))

    save("ladder", "big", 90, "1")
    save("plans", "big", 90, "2", "x", "y")
    save("plans", "small", 90, "3", "y", "z")
    save("plans", "old", 80, "4", "z")
    monkeypatch.setattr(fit.record, "RESULTS", tmp_path)
    slug, records = fit.recorded()
    assert slug == "big"
    assert [[row["kernel"] for row in r["rows"]] for r in records] == [["x", "y"], ["y", "z"]]
    (tmp_path / "tables" / "ladder-big.json").unlink()
    assert fit.recorded()[0] == "old"  # the newest; run() reports that its ladder is missing
    save("ladder", "elsewhere", 90, "5")
    assert fit.recorded()[0] == "old"


@needs_cuda_build
@pytest.mark.rows(family=PROVEN_FAMILIES, takes_float32=ANY, tiles=False)
def test_cuts_tell_plans_apart(row: Kernel) -> None:
    """Plans with the same text are the same plan."""
    device = torch_sgemm.Device()
    for _, problem in problems(24, 5):
        about = fit.numbers(problem)
        words, seconds = fit.cuts(row.name, about, device), fit.predictions(row.name, about, device)
        assert len(words) == len(seconds)
        by_words = dict(zip(words, seconds, strict=True))
        assert all(by_words[cut] == x for cut, x in zip(words, seconds, strict=True))
        assert all(re.fullmatch(r"(\w+=\w+( |$))+", cut) for cut in words)


@needs_cuda_build
def test_plans_are_found_by_their_cuts(library: fit.Library) -> None:
    """Plans are found at any index; plans that no longer exist are left out."""
    record = synthetic(library, ["split_fp16x3"], 14)
    expected = fit.cases([record])
    for case in expected:
        words = fit.cuts(case.row, case.numbers, case.device, case.packed)
        for r in record["rows"]:
            if r["problem"] == case.problem:
                r |= {"cut": words[r["plan"]], "plan": -5}
    record["rows"].append(record["rows"][0] | {"cut": "tile=1x1"})
    for case, other in zip(expected, fit.cases([record]), strict=True):
        first = dict(zip(case.plans, case.seconds, strict=True))
        found = dict(zip(other.plans, other.seconds, strict=True))
        assert set(found) <= set(first) and all(first[at] == found[at] for at in found)
        assert len(set(case.seconds)) == len(found)


@needs_cuda_build
def test_each_record_s_plans_are_predicted_for_its_gpu(library: fit.Library) -> None:
    slower = {"bandwidth_gbs": 1000.0, "sms": 20}
    records = [synthetic(library, ["ieee_small"], 14) for _ in range(2)]
    records[1]["machine"] = MACHINE | {"predicted_for": slower}
    found = fit.cases(records)
    at_once, apart = found[: len(found) // 2], found[len(found) // 2 :]
    assert {case.device for case in at_once} == {torch_sgemm.Device()}
    assert {case.device for case in apart} == {torch_sgemm.Device(**slower)}
    fastest = [
        (x.predicted().min(), y.predicted().min()) for x, y in zip(at_once, apart, strict=True)
    ]
    assert all(here < there for here, there in fastest)
