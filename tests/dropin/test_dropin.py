"""``enable()`` and ``enabled()``: what they change while on, and that nothing is left after."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support import fallbacks as cases
from support.data import integers
from support.models import Products, perceptron
from support.process import python
from support.table import each_device
from torch import Tensor

import torch_sgemm
from torch_sgemm.dropin import overrides, settings

VECTORS = ("dot", "addmv", "addmv.out", "addmv_")


def registrations() -> str:
    """The dispatcher's own view of the operators that are overridden."""
    names = (*overrides.OVERRIDES, *VECTORS)
    return "".join(torch._C._dispatch_dump(f"aten::{name}") for name in names)


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    """Every test starts without overrides, and leaves the dispatcher as it was."""
    torch_sgemm.reset_stats()
    before = registrations()
    yield
    assert registrations() == before
    assert not overrides.installed() and not settings._scopes and settings._base is None


def drawn(device: str, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device)


def batches(device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Two factors and an addend."""
    shapes = (2, 3, 4), (2, 4, 5), (2, 3, 5)
    return [integers(shape, seed, device).to(dtype) for seed, shape in enumerate(shapes)]


def every_variant(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor]:
    """The results of one call of each overridden operator."""
    found = []
    for x, y, z, mm, addmm in ((a[0], b[0], c[0], "mm", "addmm"), (a, b, c, "bmm", "baddbmm")):
        multiply, add = getattr(torch, mm), getattr(torch, addmm)
        found += [
            multiply(x, y),
            multiply(x, y, out=torch.empty_like(z)),
            add(z, x, y, beta=-3, alpha=2),
            add(z[..., :1, :], x, y, beta=0.5, out=torch.empty_like(z)),
            getattr(z.clone(), f"{addmm}_")(x, y, alpha=-1),
        ]
    return found


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's kernels, if an override calls them from Python, raise an error."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("PyTorch's kernel was called from Python")

    monkeypatch.setattr(overrides, "_covered", lambda name, key: refuse)


def hits() -> dict[str, int]:
    return torch_sgemm.stats().hits


def fallbacks() -> dict[tuple[str, str], int]:
    return torch_sgemm.stats().fallbacks


def test_stats_start_no_gpu() -> None:
    program = """
import torch, torch_sgemm
assert torch_sgemm.stats().redone == {}
assert not torch.cuda.is_initialized()
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


# --- on and off -----------------------------------------------------------------------------


@each_device
def test_original_bits_are_back(device: str) -> None:
    a, b = drawn(device, 40, 300), drawn(device, 300, 50, seed=1)
    before = a @ b
    for _ in range(1000):
        torch_sgemm.enable("ladder", devices=(device,))
        torch_sgemm.disable()
    with torch_sgemm.enabled("triple_loop" if device == "cpu" else "ladder", devices=(device,)):
        other = a @ b
    assert hits() == {"mm": 1}
    assert not torch.equal(other, before), "the data doesn't tell the kernels apart"
    assert torch.equal(a @ b, before)
    assert hits() == {"mm": 1}


@each_device
def test_threads(device: str) -> None:
    """Eight at once switch and compute: right results, and off at the end."""
    a, b = integers((9, 7), 1, device), integers((7, 5), 2, device)
    expected = a @ b

    def work(thread: int) -> int:
        right = 0
        for turn in range(125):
            if (thread + turn) % 3 == 0:
                torch_sgemm.enable("ladder", devices=(device,))
                right += torch.equal(a @ b, expected)
                torch_sgemm.disable()
            else:
                with torch_sgemm.enabled("auto", devices=(device,)):
                    right += torch.equal(a @ b, expected)
        return right

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [125] * 8
    # A scope of its own holds the override; enable() may be taken back by another thread.
    assert hits()["mm"] >= 8 * 125 * 2 // 3 - 8


@each_device
def test_no_call_is_lost_in_counting(device: str) -> None:
    a, b = integers((2, 3), 1, device), integers((3, 4), 2, device)

    def work(_: int) -> None:
        for _ in range(500):
            torch.mm(a, b)
            torch.mm(a.double(), b.double())

    with torch_sgemm.enabled("aten", devices=(device,)), ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert hits() == {"mm": 8 * 500}
    assert fallbacks() == {("mm", "dtype"): 8 * 500}


@each_device
def test_scopes_nest(device: str) -> None:
    x = integers((4, 4), 1, device)
    torch_sgemm.enable("ladder", devices=(device,))
    assert settings._current.kernel == "ladder"
    with torch_sgemm.enabled("naive_32", devices=(device,)):
        with torch_sgemm.enabled("aten", devices=(device,)):
            assert settings._current.kernel == "aten"
            torch_sgemm.disable()
            assert settings._current.kernel == "aten"
            assert torch.equal(x @ x, x.double().mm(x.double()).float())
        assert settings._current.kernel == "naive_32"
    assert hits() == {"mm": 1}
    assert fallbacks() == {("mm", "dtype"): 1}
    assert settings._current is None


@each_device
def test_an_exception_ends_its_scope(device: str) -> None:
    x = torch.ones(2, 3, device=device)
    raises = pytest.raises(RuntimeError, match="shapes cannot be multiplied")
    with raises, torch_sgemm.enabled(devices=(device,)):
        x @ x
    assert fallbacks() == {("mm", "shape"): 1}
    assert settings._current is None


@each_device
def test_scopes_closed_in_another_order(device: str) -> None:
    x = integers((4, 4), 1, device)
    first = torch_sgemm.enabled("naive_32", devices=(device,))
    second = torch_sgemm.enabled("aten", devices=(device,))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert settings._current.kernel == "aten"
    x @ x
    second.__exit__(None, None, None)
    x @ x
    assert hits() == {"mm": 1}


@each_device
def test_a_call_that_no_row_takes_is_no_hit(device: str) -> None:
    x = integers((65, 65), 1, device)
    with (
        torch_sgemm.enabled("ieee_tiny", devices=(device,)),
        pytest.raises(RuntimeError, match="larger than it takes"),
    ):
        x @ x
    assert hits() == {}
    assert fallbacks() == {}


@pytest.mark.filterwarnings("ignore:.*changes nothing")
def test_an_inner_scope_takes_another_device(refusing: None) -> None:
    """The operators stay overridden for the outer scope; the library calls PyTorch's kernels."""
    if not torch.version.cuda:
        pytest.skip("this PyTorch has no CUDA kernels to override")
    operands = batches("cpu")
    expected = every_variant(*operands)
    with torch_sgemm.enabled(devices=("cpu",)), torch_sgemm.enabled(devices=("cuda",)):
        found = every_variant(*operands)
    assert all(map(torch.equal, found, expected))
    assert hits() == {}
    assert fallbacks() == {(name, "disabled"): 1 for name in overrides.OVERRIDES}


def test_quiet_and_without_leaks() -> None:
    result = python("-W", "error::UserWarning", "-m", "support.quiet")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "quiet"
    assert result.stderr == ""


# --- what arrives ---------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["auto", "aten", "ladder"])
@each_device
def test_every_variant(device: str, kernel: str) -> None:
    """One hit each, the right values, and what is written is what is returned."""
    a, b, c = (integers(s, i, device) for i, s in enumerate(((2, 3, 4), (2, 4, 5), (2, 3, 5))))
    product = (a.double() @ b.double()).float()
    total, scaled = product + c, 2 * product - 3 * c
    with torch_sgemm.enabled(kernel, devices=(device,)):
        for x, y, z, p, s, t, batch in (
            (a[0], b[0], c[0], product[0], total[0], scaled[0], ""),
            (a, b, c, product, total, scaled, "b"),
        ):
            out = torch.full_like(p.mT, float("nan")).mT  # column-major
            mm, addmm = ("bmm", "baddbmm") if batch else ("mm", "addmm")
            multiply, add = getattr(torch, mm), getattr(torch, addmm)
            assert torch.equal(multiply(x, y), p)
            assert multiply(x, y, out=out) is out and torch.equal(out, p)
            assert torch.equal(add(z, x, y), s)
            assert torch.equal(add(z[..., :1, :], x, y, beta=0), p)
            out = out.clone().fill_(float("nan"))
            assert add(z, x, y, alpha=2, beta=-3, out=out) is out and torch.equal(out, t)
            own = z.clone()
            assert add(own, x, y, alpha=2, beta=-3, out=own) is own and torch.equal(own, t)
            own = z.clone()
            assert getattr(own, addmm + "_")(x, y, alpha=2, beta=-3) is own
            assert torch.equal(own, t)
            assert hits() == {
                mm: 1, f"{mm}.out": 1, addmm: 2, f"{addmm}.out": 2, f"{addmm}_": 1
            }  # fmt: skip
            torch_sgemm.reset_stats()
    assert fallbacks() == {}


@each_device
def test_backward_arrives(device: str) -> None:
    """Forward, a product a layer; backward, one for each weight and each inner activation."""
    model, x = perceptron(device, layers=3), drawn(device, 5, 6)
    loss = model(x).square().sum()
    expected = torch.autograd.grad(loss, list(model.parameters()))
    with torch_sgemm.enabled("ladder", devices=(device,)):
        loss = model(x).square().sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
    assert hits() == {"addmm": 3, "mm": 3 + 2}
    assert fallbacks() == {}
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
@each_device
def test_fallback(device: str, case: cases.Fallback) -> None:
    """PyTorch's own result or error, and the reason is counted."""
    expected = cases.outcome(case.call, device)
    with torch_sgemm.enabled("ladder", devices=(device,)):
        result = cases.outcome(case.call, device)
    assert cases.same(result, expected), f"{result} instead of {expected}"
    assert hits() == {}
    assert fallbacks() == dict.fromkeys(case.reasons, 1)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str
)
@each_device
def test_sound_products_of_other_dtypes_do_without_python(
    device: str, dtype: torch.dtype, refusing: None
) -> None:
    """The library calls PyTorch's kernel, and other Python threads run meanwhile."""
    operands = batches(device, dtype)
    expected = every_variant(*operands)
    with torch_sgemm.enabled(devices=(device,)):
        found = every_variant(*operands)
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == dtype and torch.equal(x, y)
    assert hits() == {}
    assert fallbacks() == {(name, "dtype"): 1 for name in overrides.OVERRIDES}


@each_device
def test_products_that_pytorch_may_refuse_go_there_from_python(device: str, refusing: None) -> None:
    """Its errors keep their types only where Python calls it."""
    a, b = integers((3, 4), 1, device), integers((4, 5), 2, device)
    with torch_sgemm.enabled(devices=(device,)):
        for x, y in ((a, a), (a, b.double()), (a.double(), a.double())):
            with pytest.raises(AssertionError, match="called from Python"):
                torch.mm(x, y)


@pytest.mark.gpu
def test_fallback_for_tf32() -> None:
    x = integers((4, 4), 1, "cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch_sgemm.enabled():
        x @ x
    assert hits() == {}
    assert fallbacks() == {("mm", "precision"): 1}


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=["matrix", "batch", "heads"])
@each_device
def test_no_memory(device: str, shape: tuple[int, ...]) -> None:
    """The error is PyTorch's own, also for programs that catch it and go on with less."""
    # The product takes 2^48 bytes and more, twice what a process has addresses for: some systems
    # lend all that is less, and kill the process when it is written.
    a = torch.empty(*shape, 1 << 23, 1, device=device)
    with pytest.raises(RuntimeError) as expected:
        a @ a.mT
    with torch_sgemm.enabled(devices=(device,)), pytest.raises(RuntimeError) as found:
        a @ a.mT
    assert found.type is expected.type
    assert str(found.value)[:30] == str(expected.value)[:30]
    assert hits() == {}
    assert "failed" in {reason for _, reason in fallbacks()}


@each_device
def test_inference_mode(device: str) -> None:
    a = integers((4, 4), 1, device)
    expected = a @ a
    with torch_sgemm.enabled(devices=(device,)), torch.inference_mode():
        result = a @ a
    assert result.is_inference()
    assert torch.equal(result, expected)
    assert hits() == {"mm": 1}


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@each_device
def test_compiled_by_inductor(device: str, training: bool) -> None:
    """The calls that Inductor writes into its code are of the operators that are overridden."""
    torch.compiler.reset()
    model, x = perceptron(device, layers=1), drawn(device, 5, 6)
    weight = drawn(device, 6, 6, seed=1)
    compiled = torch.compile(lambda x: model(x) @ weight, fullgraph=True)

    def step() -> Tensor:
        result = compiled(x)
        if training:
            result.sum().backward()
        return result

    with torch_sgemm.enabled("ladder", devices=(device,)), torch.set_grad_enabled(training):
        step()  # compiles, and there Inductor times products of its own, which are counted too
        torch_sgemm.reset_stats()
        result = step()
    # Backward: of both products, by one operand each; the input and the last weight take none.
    assert sum(hits().values()) == (4 if training else 2)
    assert fallbacks() == {}
    with torch.no_grad():
        torch.testing.assert_close(result, model(x) @ weight, rtol=1e-4, atol=1e-5)


@each_device
def test_a_model_is_copied_and_pickled(device: str) -> None:
    model, x = Products("ladder").to(device), drawn(device, 5, 6)
    expected = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), expected)
        twin(x).sum().backward()
        assert twin.first.grad is not None and model.first.grad is None


@pytest.mark.parametrize("factor", ["alpha", "beta"])
@each_device
def test_factors_beyond_float32_are_pytorch_s(device: str, factor: str) -> None:
    """Its error, or what it makes of them; and counted."""
    x = torch.ones(2, 2, 2, device=device)
    products = {
        "addmm": lambda: torch.addmm(x[0], x[0], x[0], **{factor: 1e300}),
        "addmm_": lambda: x[0].clone().addmm_(x[0], x[0], **{factor: 1e300}),
        "baddbmm": lambda: torch.baddbmm(x, x, x, **{factor: 1e300}),
        "baddbmm.out": lambda: torch.baddbmm(x, x, x, out=x.clone(), **{factor: 1e300}),
    }
    for name, product in products.items():
        expected = outcome(product)
        with torch_sgemm.enabled("ladder", devices=device):
            before = torch_sgemm.stats().fallbacks.get((name, "factor"), 0)
            assert outcome(product) == expected
            assert torch_sgemm.stats().fallbacks[name, "factor"] == before + 1


def outcome(product) -> str:
    """A result, or the error that there is instead."""
    try:
        return str(product())
    except RuntimeError as failure:
        return str(failure)
