"""Tuned choices: the file, what is refused of it, and what ``auto`` makes of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.noted import noted
from support.process import python

import torch_sgemm
from torch_sgemm.choice import tuned
from torch_sgemm.choice.tuned import FLAGS, Gpu, Problem, Strides, TunedChoice
from torch_sgemm.measure import tuning

H200 = torch_sgemm.Device()
GPU = Gpu(H200.name, H200.arch, H200.sms)
WORKSPACE = 4096 << 20


@pytest.fixture(autouse=True)
def untuned() -> Iterator[None]:
    """Leaves the process as it was."""
    before = tuned.current()
    yield
    tuned.replace(before)


def square(size: int) -> Problem:
    rows = Strides(size, 1, 0, 0, 0)
    return Problem(
        size, size, size, 1, rows, rows, rows, (0, 0, 0), WORKSPACE, ("D may add up pieces",)
    )


def explained(size: int, **about: Any) -> torch_sgemm.Explanation:
    a = torch.empty(size, size, device="meta")
    return torch_sgemm.explain(a, a, device=torch_sgemm.Device(**about))


def other_choice(problem: Problem, gpu: Gpu = GPU) -> TunedChoice:
    """A plan that is not the predicted one, of another row."""
    found = tuning.candidates(problem, H200)
    predicted = min(found, key=lambda x: x.seconds)
    other = next(x for x in found if x.kernel not in (predicted.kernel, "aten") and x.plans > 1)
    return TunedChoice(gpu, problem, other.kernel, other.plan, other.plans, 1e-6, 3e-6, 2e-6)


# --- what auto takes --------------------------------------------------------------------------


def test_a_tuned_choice_holds_for_its_problem_alone() -> None:
    predicted = {size: explained(size) for size in (512, 516)}
    choice = other_choice(square(512))
    tuned.replace([choice])
    found = explained(512)
    assert found.chosen == choice.kernel != predicted[512].chosen and found.measured
    assert "chosen by measurement" in str(found) and "measured slower" in str(found)
    assert explained(516) == predicted[516] and not predicted[516].measured
    a = torch.empty(512, 512, device="meta")
    batch = a.expand(3, 512, 512)
    for operands in ((a, a.t()), (batch, batch), (a, a, torch.empty(512, device="meta"))):
        assert not torch_sgemm.explain(*operands, device=H200).measured
    for row in ("ieee", choice.kernel, "batch_invariant"):  # asked for by name
        assert not torch_sgemm.explain(a, a, kernel=row, device=H200).measured
    tuned.replace(())
    assert explained(512) == predicted[512]


@pytest.mark.parametrize("shape", [(512, 512), (512,), (512, 1)])
def test_explain_knows_choices_for_c_as_it_lies(shape: tuple[int, ...]) -> None:
    a = torch.zeros(512, 512)
    (asked,) = noted(lambda: torch.ops.sgemm.addmm(torch.zeros(shape), a, a))
    tuned.replace([other_choice(replace(square(512), flags=asked.flags))])
    a = a.to("meta")
    for other in ((512, 512), (512,), (512, 1)):
        c = torch.empty(other, device="meta")
        found = torch_sgemm.explain(a, a, c, device=H200)
        assert found.measured == (len(shape) == len(other)), other  # rows of C are read, or one
    assert not torch_sgemm.explain(a, a, device=H200).measured


def test_another_gpu_predicts_and_says_so_once(capfd: pytest.CaptureFixture) -> None:
    predicted = explained(512, name="NVIDIA H100 80GB HBM3")
    tuned.replace([other_choice(square(512))])
    for _ in range(2):
        assert explained(512, name="NVIDIA H100 80GB HBM3") == predicted
        assert explained(512, sms=66).measured is False
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0] == (
        "torch_sgemm: the choices that were tuned are for NVIDIA H200, none for "
        "NVIDIA H100 80GB HBM3 (132 SMs): predictions hold"
    )
    assert "(66 SMs)" in said[1]


@pytest.mark.parametrize("change", [{"plans": 1000}, {"kernel": "ieee_tiny"}, {"kernel": "no_row"}])
def test_a_plan_that_the_row_no_longer_has_is_not_taken(change: dict) -> None:
    """ieee_tiny takes sizes up to 64 only."""
    predicted = explained(512)
    choice = other_choice(square(512))
    tuned.replace([TunedChoice(**{**vars(choice), **change})])
    assert explained(512) == predicted


def test_pytorch_s_kernel_may_be_a_tuned_choice() -> None:
    assert explained(2048).chosen != "aten"
    tuned.replace([TunedChoice(GPU, square(2048), "aten", 0, 1, 1e-6, 1e-6, 2e-6)])
    found = explained(2048)
    assert found.chosen == "aten" and found.measured


def test_every_candidate_can_be_chosen() -> None:
    problem = square(384)
    found = tuning.candidates(problem, H200)
    assert len(found) > 10 and found[0].kernel == "aten"
    for x in found:
        tuned.replace([TunedChoice(GPU, problem, x.kernel, x.plan, x.plans, 1.0, 1.0, 1.0)])
        verdict = next(v for v in explained(384).verdicts if v.name == x.kernel)
        assert explained(384).measured
        assert verdict.seconds == pytest.approx(x.seconds, rel=1e-4)


# --- the file -------------------------------------------------------------------------------

_names = st.text(st.characters(exclude_characters="\t\n"), max_size=20)
_sizes = st.integers(1, 2**40)
_strides = st.builds(Strides, *[st.integers(0, 2**40)] * 3, st.integers(0, 2**31), _sizes)
_problems = st.builds(
    Problem,
    *[_sizes] * 4,
    *[_strides] * 3,
    st.tuples(*[st.sampled_from((0, 4, 8, 12))] * 3),
    _sizes,
    st.sets(st.sampled_from(list(FLAGS))).map(lambda some: tuple(x for x in FLAGS if x in some)),
)


@given(_problems)
def test_a_problem_and_its_numbers(problem: Problem) -> None:
    assert Problem.of(problem.numbers()) == problem


@given(st.lists(_problems, max_size=3, unique=True), _names)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, problems: list, name: str
) -> None:
    path = tmp_path_factory.mktemp("tuned") / "file.json"
    gpu = Gpu(name, 90, 132)
    choices = [TunedChoice(gpu, x, "ieee_small", 2, 7, 1e-6, 2.5e-6, 1.5e-6) for x in problems]
    path.write_text(tuned.text(choices))
    assert tuned.read(path) == choices
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def written(path: Path) -> dict:
    """A file of one choice, as JSON."""
    path.write_text(tuned.text([other_choice(square(512))]))
    return json.loads(path.read_text())


def test_a_file_is_used_until_another_one_is(tmp_path: Path) -> None:
    predicted, path = explained(512), tmp_path / "tuned.json"
    written(path)
    torch_sgemm.use_tuned(path)
    assert explained(512).measured and len(tuned.current()) == 1
    torch_sgemm.use_tuned(None)
    assert explained(512) == predicted and tuned.current() == ()


def change(*path: Any, to: Any = None, missing: bool = False) -> Callable[[dict], None]:
    def apply(found: dict) -> None:
        for key in path[:-1]:
            found = found[key]
        if missing:
            del found[path[-1]]
        else:
            found[path[-1]] = to

    return apply


FIRST = ("choices", 0)
DAMAGES = {
    "another format": change("format", to=2),
    "no choices": change("choices", missing=True),
    "choices of another kind": change("choices", to={"a": 1}),
    "a choice of another kind": change(*FIRST, to=3),
    "no row": change(*FIRST, "kernel", missing=True),
    "no such row": change(*FIRST, "kernel", to="no_such_row"),
    "a row that auto never takes": change(*FIRST, "kernel", to="naive_32"),
    "a row of another kind": change(*FIRST, "kernel", to=["ieee_small"]),
    "no such plan": change(*FIRST, "plan", to=10**6),
    "a negative plan": change(*FIRST, "plan", to=-1),
    "a plan that is no whole number": change(*FIRST, "plan", to=1.0),
    "true for a number": change(*FIRST, "plan", to=True),
    "no GPU": change(*FIRST, "gpu", to={}),
    "no size": change(*FIRST, "problem", "m", missing=True),
    "a size of nothing": change(*FIRST, "problem", "k", to=0),
    "a GPU's name of two lines": change(*FIRST, "gpu", "name", to="a\nb"),
    "an arch that no int holds": change(*FIRST, "gpu", "arch", to=2**40),
    "an address too many": change(*FIRST, "problem", "alignment", to=[0, 0, 0, 0]),
    "a size that no integer holds": change(*FIRST, "problem", "n", to=2**63),
    "no stride": change(*FIRST, "problem", "a", "row", missing=True),
    "a flag that nobody knows": change(*FIRST, "problem", "flags", to=["another"]),
    "two alignments": change(*FIRST, "problem", "alignment", to=[0, 0]),
    "an alignment above 15": change(*FIRST, "problem", "alignment", to=[0, 16, 0]),
    "no time": change(*FIRST, "seconds", to="short"),
    "a time that is no number": change(*FIRST, "seconds_torch", to=float("nan")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_files_are_refused_whole(damage: Callable[[dict], None], tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    found = written(path)
    damage(found)
    path.write_text(json.dumps(found))
    before = explained(512)
    with pytest.raises(RuntimeError, match=r"torch_sgemm.use_tuned: argument 'path' is .*: it "):
        torch_sgemm.use_tuned(path)
    assert explained(512) == before and tuned.current() == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1'])
def test_what_is_no_such_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="it is no JSON|it has no"):
        torch_sgemm.use_tuned(path)
    with pytest.raises(RuntimeError, match="No such file"):
        torch_sgemm.use_tuned(tmp_path / "nothing")
    with pytest.raises(RuntimeError, match="Is a directory"):
        torch_sgemm.use_tuned(tmp_path)


@pytest.mark.parametrize("key", ["version", "library"])
def test_another_version_s_file_is_refused(key: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(written(path) | {key: "0.0.1"}))
    with pytest.raises(RuntimeError, match=r"0\.0\.1.*tune again"):
        torch_sgemm.use_tuned(path)
    assert tuning._kept(path) == {}  # tune replaces the file


# --- TORCH_SGEMM_TUNED ------------------------------------------------------------------------

PROGRAM = """
import torch, torch_sgemm
a = torch.empty(512, 512, device="meta")
print(torch_sgemm.explain(a, a, device=torch_sgemm.Device()).measured)
"""


def test_the_environment_names_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    written(path)
    result = python("-c", PROGRAM, TORCH_SGEMM_TUNED=str(path))
    assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")


def test_a_damaged_file_is_ignored_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text("{")
    for named in (path, tmp_path / "nothing"):
        result = python("-c", PROGRAM, TORCH_SGEMM_TUNED=os.fspath(named))
        assert (result.returncode, result.stdout) == (0, "False\n")
        assert f"UserWarning: torch_sgemm: TORCH_SGEMM_TUNED={named}: " in result.stderr
        assert "choices are predicted" in result.stderr
