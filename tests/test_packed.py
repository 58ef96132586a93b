"""Packed right operands: the same results as unpacked ones, and never a stale one."""

from __future__ import annotations

import pytest
import torch
from support.bounds import Reference, contract_units
from support.data import DISTRIBUTIONS, integers, operands
from support.table import KERNELS, runnable

import torch_sgemm

ROW = next(row for row in KERNELS if row.name == "split_fp16x3")


@pytest.fixture
def here() -> None:
    if ROW not in runnable("cuda"):
        pytest.skip(f"needs sm_{ROW.min_arch}")


def test_cpu_tensors_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"sgemm::_?pack: argument 'b' has shape \[3, 4\]"):
        torch_sgemm.pack(torch.ones(3, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [False, True])
def test_products_with_addend(here: None, transposed: bool) -> None:
    for m, n, k in ((1, 1, 1), (130, 70, 33), (300, 260, 1000), (1000, 500, 8192)):
        a = torch.randn(m, k, device="cuda")
        b = torch.randn(n, k, device="cuda").t() if transposed else torch.randn(k, n, device="cuda")
        packed = torch_sgemm.pack(b)
        c = torch.randn(n, device="cuda")
        reference = Reference.of(a, b, c.expand(m, n), 2, 0.5)
        result = packed.mm(a, c, alpha=2, beta=0.5)
        units = contract_units(reference.units(torch.addmm(c, a, b, alpha=2, beta=0.5)))
        assert reference.units(result) <= units
        assert torch.equal(result, packed.mm(a, c, alpha=2, beta=0.5))


@pytest.mark.gpu
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_contract(here: None, name: str) -> None:
    for k in (65, 1000, 20000):
        a, b = operands(name, 150, 140, k, "cuda")
        reference = Reference.of(a, b)
        units = reference.units(torch_sgemm.pack(b).mm(a))
        assert units <= contract_units(reference.units(torch.mm(a, b)))


@pytest.mark.gpu
def test_integers_are_exact_for_any_workspace(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers((1000, 9000), 1, "cuda"), integers((9000, 300), 2, "cuda")
    packed = torch_sgemm.pack(b)
    for mib in ("1", "20", "1000"):
        monkeypatch.setenv("TORCH_SGEMM_WORKSPACE", mib)
        assert torch.equal(packed.mm(a).double(), a.double() @ b.double())


@pytest.mark.gpu
def test_a_changed_matrix_is_packed_again(here: None) -> None:
    a, b = integers((50, 60), 1, "cuda"), integers((60, 40), 2, "cuda")
    packed = torch_sgemm.pack(b)
    assert torch.equal(packed.mm(a), a @ b)
    b.mul_(2)
    assert torch.equal(packed.mm(a), a @ b)
    b.data = integers((60, 40), 3, "cuda")
    assert torch.equal(packed.mm(a), a @ b)


@pytest.mark.gpu
def test_matmul_gradients_and_shapes(here: None) -> None:
    a = integers((2, 3, 60), 1, "cuda").requires_grad_()
    b = integers((60, 40), 2, "cuda").requires_grad_()
    packed = torch_sgemm.pack(b)
    result = torch_sgemm.matmul(a, packed)
    assert torch.equal(result, a @ b)
    assert torch.equal(torch_sgemm.matmul(a[0, 0], packed), a[0, 0] @ b)
    grads = torch.autograd.grad(result.square().sum(), (a, b))
    expected = torch.autograd.grad((a @ b).square().sum(), (a, b))
    assert all(torch.equal(x, y) for x, y in zip(grads, expected, strict=True))


@pytest.mark.gpu
def test_bad_input(here: None) -> None:
    packed = torch_sgemm.pack(torch.ones(60, 40, device="cuda"))
    for bad in (torch.ones(5, 61).cuda(), torch.ones(5, 60), torch.ones(5, 60).double().cuda()):
        with pytest.raises(RuntimeError, match="argument '[ab]'"):
            packed.mm(bad)
    with pytest.raises(RuntimeError, match="argument 'packed'"):
        torch.ops.sgemm._mm_packed(
            torch.ones(5, 60, device="cuda"), packed.b, torch.ones(3, device="cuda")
        )
    with torch.inference_mode():
        bad = torch.ones(60, 40, device="cuda")
    with pytest.raises(RuntimeError, match="inference tensor"):
        torch_sgemm.pack(bad)
