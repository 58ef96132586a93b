"""tune(): which problems it finds, what it measures, and what it makes of the times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.noted import noted
from support.process import python
from torch import Tensor

import torch_sgemm
from torch_sgemm.choice import tuned
from torch_sgemm.choice.tuned import Gpu, Problem
from torch_sgemm.measure import timing, tuning

SGEMM = torch.ops.sgemm
H200 = torch_sgemm.Device()
GPU = Gpu(H200.name, H200.arch, H200.sms)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def untuned() -> Iterator[None]:
    before = tuned.current()
    yield
    tuned.replace(before)
    SGEMM._note_problems(False)


# --- problems ---------------------------------------------------------------------------------


def heads(device: str) -> Tensor:
    return torch.randn(2, 20, 3, 8, device=device).transpose(1, 2)


def out_of_stride(device: str) -> Tensor:
    return torch.empty(12, 40, device=device)[:, 1:31]


CALLS: dict[str, Callable[[Tensor, Tensor, str], object]] = {
    "mm": lambda a, b, d: SGEMM.mm(a, b),
    "mm of a transposed matrix": lambda a, b, d: SGEMM.mm(a, torch.randn(30, 20, device=d).t()),
    "mm of a bfloat16 matrix": lambda a, b, d: SGEMM.mm(a.bfloat16(), b),
    "mm of float16 matrices": lambda a, b, d: SGEMM.mm(a.half(), b.half()),
    "mm of columns that begin at 4 bytes": lambda a, b, d: SGEMM.mm(a[:, 1:], b[1:]),
    "mm of expanded rows": lambda a, b, d: SGEMM.mm(a[:1].expand(12, 20), b),
    "mm of a matrix and its transpose": lambda a, b, d: SGEMM.mm(a, a.mT),
    "mm_out with a stride": lambda a, b, d: SGEMM.mm_out(a, b, out=out_of_stride(d)),
    "bmm": lambda a, b, d: SGEMM.bmm(a.expand(3, 12, 20), torch.randn(3, 20, 30, device=d)),
    "matmul of heads": lambda a, b, d: torch_sgemm.matmul(heads(d), heads(d).mT),
    "addmm of a row": lambda a, b, d: SGEMM.addmm(b[0], a, b),
    "addmm of a matrix": lambda a, b, d: SGEMM.addmm(a @ b, a, b, alpha=2.0),
    "a product with a factor": lambda a, b, d: SGEMM.gemm_(a @ b, a, b, alpha=2.0),
    "linear": lambda a, b, d: SGEMM.linear(a, b.t(), b[0], "gelu"),
    "packed": lambda a, b, d: torch_sgemm.pack(b, frozen=True).mm(a),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_noted_problem_can_be_laid_out_again(call: Callable, device: str) -> None:
    """tune() measures the product that the program asked for: the same choice's key."""
    a, b = torch.randn(12, 20, device=device), torch.randn(20, 30, device=device)
    (problem,) = noted(lambda: call(a, b, device))
    again = tuning._set(problem, torch.device(device))
    assert noted(again.run) == [problem]


def test_problems_are_noted_once_and_only_those_of_auto() -> None:
    a = torch.randn(12, 20)

    def run() -> None:
        for _ in range(3):
            SGEMM.mm(a, a.t())
            SGEMM.mm(a.t(), a)
        SGEMM.mm(a[:4], a.t(), "ladder")

    first, second = noted(run)
    assert (first.label, second.label) == ("12 x 12 x 20 NT", "20 x 20 x 12 TN")
    assert noted(lambda: None) == [] and noted(run) == [first, second]


def test_nothing_of_the_cpu_is_tuned() -> None:
    with tuning.noting() as found:
        SGEMM.mm(torch.ones(3, 4), torch.ones(4, 5))
    assert found == []


# --- choices ----------------------------------------------------------------------------------


def problem_of(size: int) -> Problem:
    a = torch.randn(size, size)
    return noted(lambda: SGEMM.mm(a, a))[0]


def test_candidates_are_the_fastest_plans_of_each_row() -> None:
    problem = problem_of(256)
    found = tuning.candidates(problem, H200)
    a = torch.empty(256, 256, device="meta")
    explained = torch_sgemm.explain(a, a, device=H200)
    for name in dict.fromkeys(x.kernel for x in found):
        plans = [x for x in found if x.kernel == name]
        verdict = next(v for v in explained.verdicts if v.name == name)
        assert plans[0].seconds == pytest.approx(verdict.seconds, rel=1e-4)
        assert len({x.plan for x in plans}) == len(plans) <= tuning.PLANS
        least = plans[0].seconds
        assert all(x.plan < x.plans and x.seconds <= tuning.WITHIN * least for x in plans)
    rows = {row.name for row in torch_sgemm.kernels() if row.in_auto}
    assert {"aten", explained.chosen} <= {x.kernel for x in found} <= rows
    assert not tuning.candidates(problem, torch_sgemm.Device("cpu"))[1:]


@pytest.mark.parametrize(
    "gain, is_kept", [(1.5, False), (1.02, False), (1.005, True), (1.0, True), (0.5, True)]
)
def test_the_fastest_is_taken_and_a_prediction_kept_on_a_tie(
    gain: float, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are given here: the predicted choice takes 10 us, another one 10 / gain."""
    problem = problem_of(256)
    found = tuning.candidates(problem, H200)
    predicted = min(found, key=lambda x: x.seconds)
    other = next(x for x in found if x.kernel not in (predicted.kernel, "aten"))
    asked: list[int] = []

    def times(runs: list[Callable[[], None]], device: torch.device, **how: object) -> list[float]:
        seconds = []
        for run in runs:
            run()  # makes its choice the one that auto takes
            (choice,) = tuned.current()
            mine = (choice.kernel, choice.plan)
            if mine == (other.kernel, other.plan):
                seconds.append(10e-6 / gain)
            else:
                seconds.append(10e-6 if mine == (predicted.kernel, predicted.plan) else 20e-6)
        asked.append(len(runs))
        return seconds

    monkeypatch.setattr(timing, "seconds_by_turns", times)
    monkeypatch.setattr(tuning, "operands", lambda *_: [lambda: None])
    both = [(GPU, problem), (Gpu("another", 90, 132), problem)]
    result = tuning.tune_problems(both, H200, None)
    assert tuned.current() == () and result.skipped == ()
    (choice,) = result.choices
    assert (choice.gpu, choice.problem) == (GPU, problem)
    taken = predicted if is_kept else other
    assert (choice.kernel, choice.plan, choice.plans) == (taken.kernel, taken.plan, taken.plans)
    assert choice.seconds == pytest.approx(10e-6 if is_kept else 10e-6 / gain)
    assert (choice.seconds_torch, choice.seconds_predicted) == (20e-6, 10e-6)
    assert asked[0] == len(found) and 2 <= asked[1] <= tuning.FINALISTS + 2
    assert "256 x 256 x 256 NN" in str(result) and choice.kernel in str(result)


def test_a_product_without_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(tuning, "operands", none)
    result = tuning.tune_problems([(GPU, problem_of(64))], H200, None)
    assert result.choices == ()
    assert str(result) == (
        "No product was measured.\n64 x 64 x 64 NN: skipped, its operands find no memory"
    )


# --- bad input ----------------------------------------------------------------------------------


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a GPU for the checks of arguments."""
    monkeypatch.setattr(tuning, "_device", lambda _: torch.device("cuda", 0))


def test_without_a_gpu_there_is_nothing_to_measure() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match=r"torch_sgemm.tune: .*there is nothing to measure"):
        torch_sgemm.tune([(1, 2, 3)])


@pytest.mark.parametrize("sizes", [(1, 2), (1, 2, 3, 4, 5), (1, 0, 3), (1, 2.0, 3), (True, 2, 3)])
def test_sizes_that_are_none(sizes: tuple, a_gpu: None) -> None:
    with pytest.raises(RuntimeError, match=r"argument 'what' has sizes .*accepted: \(m, n, k\) or"):
        torch_sgemm.tune([(3, 3, 3), sizes])


def test_a_path_that_is_another_file(tmp_path: Path, a_gpu: None) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("notes")
    with pytest.raises(RuntimeError, match=r"argument 'path' is .*notes.txt.*: it is no JSON"):
        torch_sgemm.tune([(3, 3, 3)], path=path)
    assert path.read_text() == "notes"
    with pytest.raises(RuntimeError, match="accepted: a file that can be written"):
        torch_sgemm.tune([(3, 3, 3)], path=tmp_path / "nowhere" / "tuned.json")


def test_the_command_s_errors(tmp_path: Path) -> None:
    missing = python("-m", "torch_sgemm.tuner", str(tmp_path / "none.py"))
    assert missing.returncode == 2 and "none.py: no such file" in missing.stderr
    if not torch.cuda.is_available():
        script = tmp_path / "script.py"
        script.write_text("print('ran')")
        refused = python("-m", "torch_sgemm.tuner", "--output", str(tmp_path / "t"), str(script))
        assert refused.returncode == 2 and "there is nothing to measure" in refused.stderr
        assert "ran" not in refused.stdout and not (tmp_path / "t").exists()


# --- on a GPU -----------------------------------------------------------------------------------

SIZES = [(48, 40, 56), (300, 200, 400), (5, 33, 65, 17), (1, 256, 512)]
PROGRAM = """
import sys, torch, torch_sgemm
for choice in torch_sgemm.choice.tuned.current():
    p = choice.problem
    batch = (p.batch,) if p.batch > 1 else ()
    a, b = (torch.randn(*batch, *x, device="cuda") for x in ((p.m, p.k), (p.k, p.n)))
    print(choice.kernel)
    torch_sgemm.matmul(a, b)
"""


@pytest.mark.gpu
def test_what_was_measured_is_what_runs() -> None:
    """Each candidate's bits are those of its plan, and a thread's older choice is forgotten."""
    gpu = torch_sgemm.Device.of(torch.device("cuda"))
    a, b = torch.randn(96, 320, device="cuda"), torch.randn(320, 200, device="cuda")
    ((kind, problem),) = tuning.problems_of(lambda: torch_sgemm.matmul(a, b))
    for x in tuning.candidates(problem, gpu):
        choice = tuned.TunedChoice(kind, problem, x.kernel, x.plan, x.plans, 1.0, 1.0, 1.0)
        tuned.replace([choice])
        explained = torch_sgemm.explain(a, b)
        assert (explained.chosen, explained.measured) == (x.kernel, True)
        expected = torch.empty(96, 200, device="cuda")
        if x.kernel == "aten":
            torch.mm(a, b, out=expected)
        else:
            SGEMM._run_plan(expected, a, b, x.kernel, x.plan)
        assert torch.equal(torch_sgemm.matmul(a, b), expected), x


@pytest.mark.gpu
def test_sizes_are_tuned_and_the_file_holds_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    result = torch_sgemm.tune(SIZES, path=path)
    assert result.skipped == () and len(result.choices) == len(SIZES)
    assert tuned.read(path) == list(result.choices) == list(tuned.current())
    assert all(0 < x.seconds <= x.seconds_torch for x in result.choices)
    a, b = torch.ones(70, 80, device="cuda"), torch.ones(80, 9, device="cuda")
    more = torch_sgemm.tune(lambda: a @ b, path=path)
    assert [x.problem.label for x in more.choices] == ["70 x 9 x 80 NN"]
    assert tuned.read(path) == [*result.choices, *more.choices]
    done = python("-c", PROGRAM, TORCH_SGEMM_TUNED=str(path), TORCH_SGEMM_LOG="1")
    assert done.returncode == 0, done.stderr
    logged = [line.rpartition(" -> ")[2] for line in done.stderr.splitlines() if " -> " in line]
    assert logged == done.stdout.split() == [x.kernel for x in tuned.current()]


@pytest.mark.gpu
def test_a_program_s_products_are_tuned(tmp_path: Path) -> None:
    script, path = tmp_path / "script.py", tmp_path / "tuned.json"
    script.write_text(
        "import torch\nlayer = torch.nn.Linear(64, 48, device='cuda')\n"
        "layer(torch.randn(100, 64, device='cuda')).sum().backward()\n"
    )
    done = python("-m", "torch_sgemm.tuner", "--output", str(path), str(script))
    assert done.returncode == 0, done.stderr
    assert f"Written: {path}" in done.stdout and "100 x 48 x 64 NT" in done.stdout
    assert len(tuned.read(path)) == 2  # the layer's, and its weight's gradient
