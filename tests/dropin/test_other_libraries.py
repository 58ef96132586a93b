"""Works beside libraries that register kernels for PyTorch's products, as vLLM and FlagGems do."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from support.table import each_device
from torch import Tensor

import torch_sgemm
from torch_sgemm import Kernel
from torch_sgemm.dropin import overrides

KEYS = {"cpu": "CPU", "cuda": "CUDA"}
OPERATORS = {
    "mm": lambda a, b: torch.mm(a, b),
    "bmm": lambda a, b: torch.bmm(a.expand(2, *a.shape), b.expand(2, *b.shape)),
    "addmm": lambda a, b: torch.addmm(b[0], a, b),
    "mm.out": lambda a, b: torch.mm(a, b, out=a.new_empty(a.shape[0], b.shape[1])),
}


loaded: list[Other] = []


class Other:
    """A library whose kernels give sevens."""

    def __init__(self, device: str, **more: bool) -> None:
        self.calls = 0
        self.library = torch.library.Library("aten", "IMPL")
        loaded.append(self)
        for name in OPERATORS:
            self.library.impl(name, self.kernel(name), KEYS[device], **more)

    def kernel(self, name: str) -> Callable:
        def sevens(*args, out: Tensor | None = None, **_) -> Tensor:
            self.calls += 1
            a, b = args[-2:]
            shape = (*a.shape[:-1], b.shape[-1])
            return a.new_full(shape, 7) if out is None else out.fill_(7)

        return sevens

    def unload(self) -> None:
        self.library._destroy()


@pytest.fixture(autouse=True)
def pytorch_s_kernels_are_back() -> Iterator[None]:
    kernels = {
        (name, key): repr(torch.library.get_kernel(f"aten::{name}", key))
        for name in OPERATORS
        for key in KEYS.values()
    }
    yield
    while loaded:
        loaded.pop().unload()
    torch_sgemm.disable()
    gc.collect(1)
    for place in overrides._left:
        overrides._uncover(*place)
    for (name, key), before in kernels.items():
        assert repr(torch.library.get_kernel(f"aten::{name}", key)) == before


def operands(device: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return tuple(torch.randn(8, 8).to(device, dtype) for _ in range(2))


def are_sevens(x: Tensor) -> bool:
    return bool((x == 7).all())


def enable(device: str, kernel: str = "auto") -> None:
    torch_sgemm.enable(kernel, devices=(device,))


@each_device
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_the_one_that_registers_last_holds(name: str, device: str) -> None:
    run, (a, b), (c, d) = OPERATORS[name], operands(device), operands(device, torch.float64)
    expected = run(a, b)
    before = Other(device)
    assert are_sevens(run(a, b))
    enable(device)
    torch.testing.assert_close(run(a, b), expected)
    assert are_sevens(run(c, d))  # what isn't ours is the other's
    between = Other(device, allow_override=True)  # PyTorch asks for that beside another
    assert are_sevens(run(a, b)) and between.calls == 1
    enable(device)  # changes nothing
    assert are_sevens(run(a, b))
    between.unload()
    torch.testing.assert_close(run(a, b), expected)
    before.unload()
    torch.testing.assert_close(run(a, b), expected)
    torch.testing.assert_close(run(c, d).float(), run(c.float(), d.float()), rtol=1e-4, atol=1e-4)
    torch_sgemm.disable()
    torch.testing.assert_close(run(a, b), expected)
    after = Other(device)
    assert are_sevens(run(a, b))
    after.unload()


@each_device
@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_a_library_below_ours_is_unloaded(device: str) -> None:
    """Fallbacks go to what is left, and so they do for good."""
    (a, b), (c, d) = operands(device), operands(device, torch.float64)
    expected, expected_double = a @ b, c @ d
    other = Other(device)
    enable(device)
    assert are_sevens(c @ d)
    other.unload()
    for _ in range(3):
        assert torch.equal(c @ d, expected_double)
        torch.testing.assert_close(a @ b, expected)
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
            torch.mm(a, b[1:])
    torch_sgemm.disable()
    enable(device)
    assert torch.equal(c @ d, expected_double)


@each_device
@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_one_that_registers_between_two_settings_gets_what_is_not_ours(device: str) -> None:
    c, d = operands(device, torch.bfloat16)
    enable(device)
    assert not are_sevens(c @ d)
    torch_sgemm.disable()
    other = Other(device)
    enable(device)
    assert are_sevens(c @ d) and other.calls == 1
    torch_sgemm.disable()
    other.unload()


@each_device
@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_one_that_calls_the_kernel_that_it_covers(device: str) -> None:
    """Ours may be that kernel: it stays, passive, when the setting ends."""
    (a, b), key = operands(device), KEYS[device]
    expected = a @ b
    enable(device, "ladder")
    covered = torch.library.get_kernel("aten::mm", key)
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda keys, x, y: 2 * covered.call_boxed(keys, x, y), key, with_keyset=True)
    torch_sgemm.reset_stats()
    torch.testing.assert_close(a @ b, 2 * expected)
    assert torch_sgemm.stats().hits == {"mm": 1}
    torch_sgemm.disable()
    assert torch.equal(a @ b, 2 * expected)
    assert torch_sgemm.stats().fallbacks["mm", "disabled"] == 1
    enable(device)
    torch.testing.assert_close(a @ b, expected)
    torch_sgemm.disable()
    assert torch.equal(a @ b, 2 * expected)
    library._destroy()
    enable(device)
    torch_sgemm.disable()


@pytest.mark.parametrize("length", [3, 4, 5])
@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_libraries_that_come_and_go_in_any_order(length: int) -> None:
    """When all are gone and the setting has ended, PyTorch's kernels compute."""
    (a, b), (c, d) = operands("cpu"), operands("cpu", torch.float64)
    expected, expected_double = a @ b, c @ d
    for events in itertools.product("EDR01", repeat=length):  # R: another library; 0, 1: unload it
        if events.count("R") > 2 or "E" not in events or "R" not in events:
            continue
        others: list[Other] = []
        for event in events:
            if event == "E":
                enable("cpu")
            elif event == "D":
                torch_sgemm.disable()
            elif event == "R":
                others.append(Other("cpu", allow_override=True))
            elif int(event) < len(others):
                others[int(event)].unload()
            (a @ b, c @ d)
        torch_sgemm.disable()
        for other in others:
            other.unload()
        assert torch.equal(a @ b, expected), events
        assert torch.equal(c @ d, expected_double), events
        loaded.clear()


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.filterwarnings("ignore:.*Overriding a previously registered kernel")
def test_every_row(row: Kernel, device: str, when: str) -> None:
    if row.max_size is not None and row.max_size < 8:
        pytest.skip("for smaller products")
    a, b = operands(device)
    expected = torch.ops.sgemm.mm(a, b, kernel=row.name)
    others = [Other(device)] if when == "before" else []
    enable(device, row.name)
    assert torch.equal(torch.mm(a, b), expected)
    if when == "between":
        torch_sgemm.disable()
        others.append(Other(device))
        enable(device, row.name)
        assert torch.equal(torch.mm(a, b), expected)
    if when == "after":
        others.append(Other(device))
        assert are_sevens(torch.mm(a, b))
    assert torch.equal(torch.ops.sgemm.mm(a, b, kernel=row.name), expected)
    for other in others:
        other.unload()
    assert torch.equal(torch.mm(a, b), expected)
    torch_sgemm.disable()
