"""Under enable(), the backward of scaled_dot_product_attention takes csrc/attention as well."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from support.attention import operands
from support.attention_gradients import assert_exact, calls, reference_kernel
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import torch_sgemm
from benchmarks.attention_gradients import NAMES, gradients_in_float64
from torch_sgemm.dropin import attention, overrides
from torch_sgemm.dropin.attention import BACKWARD, NAME
from torch_sgemm.torch_ops import attention as attention_forward
from torch_sgemm.torch_ops import attention_backward
from torch_sgemm.torch_ops.attention import Call, split_attention
from torch_sgemm.torch_ops.attention_backward import split_gradients

sdpa = functional.scaled_dot_product_attention
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def as_before():
    torch_sgemm.reset_stats()
    yield
    torch_sgemm.disable()
    assert not overrides.installed()


def taken(name: str = BACKWARD) -> int:
    return torch_sgemm.stats().hits.get(name, 0)


def left(reason: str) -> int:
    return torch_sgemm.stats().fallbacks.get((BACKWARD, reason), 0)


# ---- the override itself, on the CPU


class Covered:
    """Takes the place of PyTorch's kernel, and of the settings."""

    def __init__(self) -> None:
        self.calls, self.holds, self.is_ieee = 0, True, True
        self.override = attention.OVERRIDES[BACKWARD](
            self.kernel, lambda: self.holds, lambda: self.is_ieee
        )

    def kernel(self, *args, **kwargs) -> str:
        assert len(args) == 12 and set(kwargs) == {"scale"}
        self.calls += 1
        return "PyTorch's"


def arguments(mask: bool = False, **changes) -> dict:
    """The arguments of PyTorch's operator, in its order."""
    q, k, v = operands("cpu", 2, 3, 33, 40, 8)
    bias = torch.randn(33, 40).expand(2, 3, 33, 40) if mask else None
    out, logsumexp = torch.ops.sgemm.attention(q, k, v, bias)
    seed = torch.empty(())
    given = {"grad": torch.randn_like(out), "query": q, "key": k, "value": v, "bias": bias}
    given |= {"out": out, "logsumexp": logsumexp, "seed": seed, "offset": seed, "dropout": 0.0}
    return given | {"wanted": [True, True, True, mask], "causal": False} | changes


@pytest.mark.parametrize("mask", [False, True])
def test_results_are_pytorch_s(mask: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, shapes and strides, which compiled programs expect."""
    reference_kernel(monkeypatch)
    monkeypatch.setattr(attention, "refusal", lambda call: ("", ""))
    monkeypatch.setattr(attention, "gradients_are_faster", lambda call: True)
    covered, given = Covered(), arguments(mask)
    found = covered.override(*given.values())
    assert covered.calls == 0 and taken() == 1 and calls == [(True, True, mask)]
    expected = gradients_in_float64(*list(given.values())[:5])
    metas = [x.to("meta") if isinstance(x, Tensor) else x for x in given.values()]
    fakes = aten._scaled_dot_product_efficient_attention_backward(*metas)
    for name, x, fake in zip(NAMES, found, fakes, strict=True):
        if name == "mask" and not mask:
            assert x is None
            continue
        assert_exact(x, expected[name])
        assert x.stride() == fake.stride()


def test_lack_of_memory_is_pytorch_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the overrides too; programs look for the type and try a smaller batch."""

    class Full:
        @staticmethod
        def _attention(*_):
            raise RuntimeError("CUDA out of memory. Tried to allocate 8 bytes.")

        _attention_gradients = _attention

    q, k, v = operands("cpu", 1, 1, 4, 4, 8)
    call = Call(q, k, v, None, False, 1.0)
    for module in (attention_forward, attention_backward):
        monkeypatch.setattr(module, "operators", Full)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        split_attention(call)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        split_gradients(call, q, q, q.sum(3), (True, True, False))


@pytest.mark.parametrize("wanted", ["", "q", "k", "v", "m", "qk", "qv", "kv", "qkvm"])
def test_only_what_is_asked_for(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference_kernel(monkeypatch)
    monkeypatch.setattr(attention, "refusal", lambda call: ("", ""))
    monkeypatch.setattr(attention, "gradients_are_faster", lambda call: True)
    asked = [letter in wanted for letter in "qkvm"]
    found = Covered().override(*arguments(True, wanted=asked).values())
    assert calls == [(asked[0], asked[1] or asked[2], asked[3])]
    for x, wants in zip(found, asked, strict=True):
        assert x is not None or not wants


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("dropout", {"dropout": 0.1}),
        ("dtype", {"grad": torch.zeros(2, 3, 33, 8).half()}),
        ("dtype", {"value": torch.zeros(2, 3, 40, 8).double()}),
        ("shape", {"grad": torch.zeros(2, 3, 33, 16)}),
        ("shape", {"grad": None}),
        ("shape", {"key": torch.zeros(2, 1, 40, 8)}),
        ("shape", {"bias": torch.zeros(33, 40)}),
        ("shape", {"logsumexp": torch.zeros(2, 3, 33)}),
        ("shape", {"out": torch.zeros(2, 3, 32, 8)}),
        ("device", {"out": torch.zeros(2, 3, 33, 8, device="meta")}),
        ("device", {}),
    ],
)
def test_what_is_left_to_pytorch_is_counted(reason: str, changes: dict) -> None:
    """The last one: the CPU has no kernel."""
    covered = Covered()
    assert covered.override(*arguments(**changes).values()) == "PyTorch's"
    assert covered.calls == 1 and left(reason) == 1 and taken() == 0


def test_settings_and_predictions_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    reference_kernel(monkeypatch)
    monkeypatch.setattr(attention, "refusal", lambda call: ("", ""))
    monkeypatch.setattr(attention, "gradients_are_faster", lambda call: False)
    covered, given = Covered(), arguments().values()
    covered.override(*given)
    covered.holds = False
    covered.override(*given)
    covered.is_ieee = False
    covered.override(*given)
    assert [left(x) for x in ("predicted slower", "disabled", "precision")] == [1, 1, 1]
    covered.holds = covered.is_ieee = True
    monkeypatch.setattr(attention, "_chooses", False)  # kernel="split"
    covered.override(*given)
    assert covered.calls == 3 and taken() == 1


def test_pytorch_s_own_calls_are_left_alone() -> None:
    from torch_sgemm.torch_ops.attention import pytorch_s

    covered = Covered()
    with pytorch_s():
        covered.override(*arguments().values())
    assert covered.calls == 1 and not torch_sgemm.stats().fallbacks


# ---- on a GPU


def both(options: dict, wanted: str = "qkv", sizes=(4, 8, 300, 333, 64)):
    """Returns gradients by sdpa under enable(), and those in float64."""
    grad, *parts = [operands("cuda", *sizes, seed=1)[0], *operands("cuda", *sizes)]
    mask = options.get("attn_mask")
    leaves = {name: x for name, x in zip(NAMES, (*parts, mask), strict=True) if name[0] in wanted}
    for x in leaves.values():
        x.requires_grad_()
    with torch_sgemm.enabled("split"):
        out = sdpa(*parts, **options)
        gradients = torch.autograd.grad(out, list(leaves.values()), grad)
    found = dict(zip(leaves, gradients, strict=True))
    tensors = [None if x is None else x.detach() for x in (*parts, mask)]
    return found, gradients_in_float64(grad, *tensors, options.get("is_causal", False))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "float", "gradient of mask"])
@pytest.mark.parametrize("sizes", [(4, 8, 300, 333, 64), (2, 4, 129, 256, 128)])
def test_autograd(kind: str, sizes: tuple[int, ...]) -> None:
    rows, keys = sizes[2:4]
    mask = torch.randn(rows, keys, device="cuda")
    mask[7] = -math.inf
    options = {
        "plain": {}, "causal": {"is_causal": True}, "bool": {"attn_mask": mask > 0.5},
        "float": {"attn_mask": mask}, "gradient of mask": {"attn_mask": mask},
    }[kind]  # fmt: skip
    wanted = "qkvm" if kind == "gradient of mask" else "qkv"
    found, expected = both(options, wanted, sizes)
    assert taken() == taken(NAME) == 1 and not torch_sgemm.stats().fallbacks
    for name, x in found.items():
        assert_exact(x, expected[name])


@pytest.mark.gpu
@pytest.mark.parametrize("first", ["ours", "PyTorch's"])
def test_either_backward_follows_either_forward(first: str) -> None:
    sizes = 4, 8, 300, 333, 64
    grad, *parts = [operands("cuda", *sizes, seed=1)[0], *operands("cuda", *sizes)]
    mask = torch.rand(300, 333, device="cuda") > 0.5
    mask[7] = False
    expected = gradients_in_float64(grad, *parts, mask)
    leaves = [x.requires_grad_() for x in parts]
    with torch_sgemm.enabled("split", attention=first == "ours"):
        out = sdpa(*leaves, mask)
    with torch_sgemm.enabled("split", attention=first != "ours"):
        found = torch.autograd.grad(out, leaves, grad)
    assert (taken(NAME), taken()) == ((1, 0) if first == "ours" else (0, 1))
    for name, x in zip(NAMES, found, strict=False):
        assert_exact(x, expected[name], 200)


@pytest.mark.gpu
def test_checkpoints_and_threads() -> None:
    parts = [x.requires_grad_() for x in operands("cuda", 4, 8, 300, 300, 64)]
    grad = operands("cuda", 4, 8, 300, 300, 64, seed=1)[0]
    with torch_sgemm.enabled("split"):
        expected = torch.autograd.grad(sdpa(*parts), parts, grad)
        again = checkpoint(sdpa, *parts, use_reentrant=False)
        results = [torch.autograd.grad(again, parts, grad)]

        def step() -> None:
            results.append(torch.autograd.grad(sdpa(*parts), parts, grad))

        threads = [threading.Thread(target=step) for _ in "1234"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
    assert len(results) == 5 and taken() == 6
    for found in results:
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("keys", [512, 500])
def test_compiled_programs_take_it(mode: str, keys: int) -> None:
    """With a mask, whose gradient has aligned rows, and without; some gradients only."""
    parts = [x.requires_grad_() for x in operands("cuda", 4, 16, 512, keys, 64)]
    mask = torch.randn(512, keys, device="cuda").requires_grad_()

    def function(q, k, v, mask):
        return (sdpa(2 * q, k, v, mask) + 1).square().sum()

    with torch_sgemm.enabled():
        compiled = torch.compile(function, mode=mode)
        for leaves in ((*parts, mask), parts, parts[:1], parts[2:]):
            chosen = {id(x) for x in leaves}
            args = [x if id(x) in chosen else x.detach() for x in (*parts, mask)]
            expected = torch.autograd.grad(function(*args), leaves)
            for _ in range(3):
                torch.compiler.cudagraph_mark_step_begin()
                found = torch.autograd.grad(compiled(*args), leaves)
                for x, y in zip(found, expected, strict=True):
                    torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-4)
    assert taken() >= 8


@pytest.mark.gpu
def test_graphs() -> None:
    parts = [x.requires_grad_() for x in operands("cuda", 4, 8, 300, 300, 64)]
    grad = operands("cuda", 4, 8, 300, 300, 64, seed=1)[0]
    with torch_sgemm.enabled("split"):
        torch.autograd.grad(sdpa(*parts), parts, grad)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = torch.autograd.grad(sdpa(*parts), parts, grad)
        grad.neg_()
        graph.replay()
        expected = torch.autograd.grad(sdpa(*parts), parts, grad)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.gpu
def test_what_a_gpu_leaves_to_pytorch() -> None:
    q, k, v = (x.requires_grad_() for x in operands("cuda", 8, 16, 512, 512, 64))
    with torch_sgemm.enabled(), sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        sdpa(q, k, v, dropout_p=0.1).sum().backward()
        assert left("dropout") == 1
        sdpa(*(x[..., :20] for x in (q, k, v))).sum().backward()
        assert left("shape") == 1
        sdpa(*(x.half() for x in (q, k, v))).sum().backward()
        assert left("dtype") == 1
        torch.backends.cuda.matmul.allow_tf32 = True
        sdpa(q, k, v).sum().backward()
        assert left("precision") == 1
        torch.backends.cuda.matmul.allow_tf32 = False
        torch_sgemm.attention(q, k, v, kernel="aten").sum().backward()  # PyTorch's, also here
    assert taken() == 0
    with torch_sgemm.enabled(attention=False):
        sdpa(q, k, v).sum().backward()
    assert taken() == 0 and left("disabled") == 0


@pytest.mark.gpu
def test_second_derivatives_are_pytorch_s_error() -> None:
    """PyTorch has none for its fused kernel; its math backend has, and so has attention()."""
    parts = [x.requires_grad_() for x in operands("cuda", 1, 2, 64, 64, 64)]
    with torch_sgemm.enabled("split"):
        (first,) = torch.autograd.grad(sdpa(*parts).square().sum(), parts[:1], create_graph=True)
        with pytest.raises(RuntimeError, match="efficient_attention_backward is not implemented"):
            first.sum().backward()
        with sdpa_kernel(SDPBackend.MATH):
            out = sdpa(*parts).square().sum()
        (first,) = torch.autograd.grad(out, parts[:1], create_graph=True)
        first.sum().backward()


@pytest.mark.gpu
def test_training_is_as_without() -> None:
    """The loss of 30 steps of a small transformer, to float32's noise."""

    def losses() -> list[float]:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(128, 2, 256, 0.0, batch_first=True).cuda()
        x, y = (torch.randn(8, 200, 128, device="cuda") for _ in range(2))
        optimizer, found = torch.optim.SGD(layer.parameters(), 0.05), []
        for _ in range(30):
            loss = (layer(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = losses()
    with torch_sgemm.enabled("split"):
        found = losses()
    assert taken() == 30
    assert found == pytest.approx(expected, rel=1e-5)
