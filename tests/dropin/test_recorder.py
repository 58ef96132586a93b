"""``recording()``: a program's float32 products, and what stays PyTorch's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_sgemm
from torch_sgemm.measure import recorder, timing
from torch_sgemm.measure.record import Record

F = nn.functional


def recorded(function: Callable[[], object], **arguments) -> Record:
    with torch_sgemm.recording(**arguments) as record:
        function()
    return record


def labels(record: Record) -> Counter[str]:
    """``aten::mm 2 x 3 x 4 NN`` and its calls."""
    return Counter({f"{p.operation} {p.label}": p.calls for p in record.products})


def reasons(record: Record) -> dict[str, str]:
    return {other.operation: other.reason for other in record.others}


# --- what is seen ---


def test_products_of_a_layer_and_its_backward() -> None:
    layer, x = nn.Linear(5, 7), torch.randn(3, 5, requires_grad=True)
    found = labels(recorded(lambda: layer(x).sum().backward()))
    assert found == {
        "aten::addmm 3 x 7 x 5 NT": 1, "aten::mm 3 x 5 x 7 SN": 1, "aten::mm 7 x 5 x 3 SN": 1,
    }  # fmt: skip


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_every_way_to_write_a_product(mode: Callable) -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    with mode():
        for function in (
            lambda: a @ b,
            lambda: torch.bmm(a, b),
            lambda: torch.einsum("bij,bjk->bik", a, b),
            lambda: torch.bmm(a, b, out=torch.empty(2, 3, 5)),
        ):
            assert labels(recorded(function)) == {"aten::bmm 2 x 3 x 5 x 4 NN": 1}
        assert labels(recorded(lambda: F.linear(a[0], b[0].t()))) == {"aten::mm 3 x 5 x 4 NN": 1}
        assert labels(recorded(lambda: torch.addmm(torch.ones(5), a[0], b[0]))) == {
            "aten::addmm 3 x 5 x 4 NN": 1
        }


def test_results_are_what_they_are_without() -> None:
    x, layer = torch.randn(3, 5), nn.Linear(5, 7)
    with torch_sgemm.recording():
        within = layer(x)
    assert torch.equal(within, layer(x)) and within.requires_grad


def test_own_operators_are_products_too() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5)
    packed = torch_sgemm.pack(b)

    def program() -> None:
        torch_sgemm.matmul(a, b)
        torch_sgemm.matmul(a.expand(2, 2, 3, 4), b.expand(2, 2, 4, 5))
        torch_sgemm.linear(a.reshape(3, 1, 4), b.t().contiguous(), torch.zeros(5), "relu")
        torch.ops.sgemm.addmm(c, a, b)
        torch.ops.sgemm.mm_out(a, b, out=c)
        torch.ops.sgemm.gemm_(c, a, b)
        packed.mm(a)

    found = recorded(program)
    assert sum(p.calls for p in found.products) == 7, labels(found)
    assert all(p.operation.startswith("sgemm::") for p in found.products)
    assert {(p.m, p.n, p.k) for p in found.products} == {(3, 5, 4)}
    assert not found.others


def test_under_enable_the_same_products_are_seen() -> None:
    a, b = torch.randn(30, 40), torch.randn(40, 50)
    with torch_sgemm.enabled("ladder", devices="cpu"):
        found = recorded(lambda: a @ b)
    assert labels(found) == {"aten::mm 30 x 50 x 40 NN": 1}


def test_equal_products_are_one_entry_and_others_are_not() -> None:
    a, b = torch.randn(30, 40), torch.randn(40, 50)

    def program() -> None:
        for _ in range(3):
            a @ b
        a.t().contiguous().t() @ b
        a @ b.t().contiguous().t()
        a[:, ::2] @ b[::2]

    assert labels(recorded(program)) == {
        "aten::mm 30 x 50 x 40 NN": 3, "aten::mm 30 x 50 x 40 TN": 1,
        "aten::mm 30 x 50 x 40 NT": 1, "aten::mm 30 x 50 x 20 SN": 1,
    }  # fmt: skip


def test_empty_products_are_left_out() -> None:
    found = recorded(lambda: torch.ones(3, 0) @ torch.ones(0, 4))
    assert not found.products and str(found) == "No float32 product was seen."


def test_backwards_in_other_threads_and_threads_of_the_program() -> None:
    """Autograd's threads record; a thread that the program starts has modes of its own."""
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with torch_sgemm.recording() as record:
        thread = threading.Thread(target=lambda: a @ b)
        thread.start()
        thread.join()
        a @ b
    assert [p.calls for p in record.products] == [1]


def test_a_compiled_function_is_seen() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    compiled = torch.compile(lambda a, b: torch.relu(a @ b), backend="aot_eager")
    compiled(a, b)
    assert labels(recorded(lambda: compiled(a, b))) == {"aten::mm 3 x 5 x 4 NN": 1}


def test_a_model_without_memory() -> None:
    """The meta device has shapes alone."""
    with torch.device("meta"):
        model, x = nn.Linear(4096, 16384), torch.randn(8192, 4096)
    (product,) = recorded(lambda: model(x)).products
    assert product.label == "8192 x 16384 x 4096 NT" and product.device == "meta"


def test_fake_tensors() -> None:
    def product() -> None:
        with FakeTensorMode():
            torch.randn(64, 32) @ torch.randn(32, 16)

    assert labels(recorded(product)) == {"aten::mm 64 x 16 x 32 NN": 1}


# --- attention ---


def test_attention_is_recorded_with_its_gain() -> None:
    q, k = torch.randn(2, 4, 300, 64), torch.randn(2, 4, 200, 64)

    def program() -> None:
        F.scaled_dot_product_attention(q, q, q, is_causal=True)
        for _ in range(2):
            F.scaled_dot_product_attention(q, k, k, attn_mask=torch.zeros(300, 200))
        torch_sgemm.attention(q, k[:, :1], k[:, :1, :, :32], enable_gqa=True)

    found = {call.label: call for call in recorded(program).attentions}
    assert found.keys() == {
        "2 x 4 x 300 x 64 causal", "2 x 4 x 300 x 200 x 64 mask", "2 x 4 / 1 x 300 x 200 x 64 / 32",
    }  # fmt: skip
    assert found["2 x 4 x 300 x 200 x 64 mask"].calls == 2
    for call in found.values():
        assert call.row == "split" and call.gain > 1 and call.device == "cpu"
        assert call.seconds == call.calls * call.predicted > 0


def test_attention_that_stays_pytorch_s() -> None:
    q = torch.randn(1, 2, 20, 12)
    half = q.half()
    found = recorded(
        lambda: (
            F.scaled_dot_product_attention(q, q, q),
            F.scaled_dot_product_attention(half, half, half),
        )
    )
    assert not found.attentions
    assert {"dtype", "the last dimension is no multiple of 8, or above 128"} <= {
        other.reason for other in found.others
    }


@pytest.mark.gpu
def test_attention_is_measured() -> None:
    q = torch.randn(2, 8, 512, 64, device="cuda", requires_grad=True)
    mask = torch.randn(512, 512, device="cuda")

    def program() -> None:
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        F.scaled_dot_product_attention(q, q, q, mask).sum().backward()

    found = recorded(program)
    found.measure()
    assert [call.backward for call in found.attentions].count(True) == 2
    for call in found.attentions:
        assert call.measured > 0 and call.measured_torch > 0
        assert call.gain == pytest.approx(call.measured_torch / call.measured)


# --- what stays PyTorch's ---


class Small(nn.Module):
    """A convolution, attention in one kernel, a layer in bfloat16, a product with a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.out = nn.Conv2d(3, 16, 4, stride=4), nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT.contiguous()
        q = x.unflatten(-1, (2, 8)).transpose(1, 2)
        x = F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)
        half = x.bfloat16() @ torch.ones(16, 16, dtype=torch.bfloat16)
        weights = x[0] @ torch.ones(16)
        return self.out(half.float()) + weights.sum()


def test_what_stays_and_why() -> None:
    model, images = Small(), torch.randn(2, 3, 16, 16)
    found = recorded(lambda: model(images).sum().backward())
    why = reasons(found)
    assert not any("scaled_dot_product" in name for name in why)
    calls = {call.label: call.calls for call in found.attentions}
    assert calls == {"2 x 2 x 16 x 8": 1, "2 x 2 x 16 x 8 backward": 1}
    assert why["aten::convolution"] == why["aten::convolution_backward"] == "convolution"
    assert why["aten::mv"] == "matrix times vector"
    half = [other for other in found.others if other.reason == "dtype"]
    assert half and all(other.what.endswith("bfloat16") for other in half)
    assert all(other.flops for other in found.others)
    (convolution,) = [o for o in found.others if o.operation == "aten::convolution"]
    assert convolution.flops == 2 * 2 * 16 * 16 * 3 * 4 * 4 and convolution.calls == 1
    assert {p.operation for p in found.products} == {"aten::addmm", "aten::mm"}


def test_autocast_takes_products_away() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        found = recorded(lambda: a @ b)
    assert not found.products and reasons(found) == {"aten::mm": "dtype"}


@pytest.mark.parametrize(
    "precision, reason", [("tf32", "precision"), ("ieee", None), ("bfx9", None)]
)
def test_tf32_products_are_not_float32_ones(precision: str, reason: str | None) -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = precision
    except RuntimeError:
        pytest.skip(f"this PyTorch has no {precision}")
    try:
        found = recorded(lambda: torch.ones(3, 4) @ torch.ones(4, 5))
    finally:
        matmul.fp32_precision = before
    assert reasons(found).get("aten::mm") == reason and bool(found.products) == (reason is None)


def test_complex_and_integer_products_are_others() -> None:
    a = torch.ones(3, 3)
    for x in (a.double(), a.long(), a.to(torch.complex64)):
        assert reasons(recorded(lambda x=x: x @ x)) == {"aten::mm": "dtype"}


def test_operators_of_higher_order_are_named() -> None:
    """The recorder doesn't see the operators inside."""
    x = torch.ones(4, 4)
    found = recorded(lambda: torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: -x, (x,)))
    assert found.products or reasons(found) == {"higher_order::cond": "products inside, not seen"}


def test_layers_that_are_one_operator_are_named() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    with torch.inference_mode():
        found = recorded(lambda: layer(torch.randn(2, 5, 16)))
    assert found.products or set(reasons(found).values()) == {"products inside, not seen"}


def test_reasons_fit_no_other_operators() -> None:
    for name in ("mm", "addmm", "add", "conv_tbc", "mvlgamma", "dots", "view", "relu"):
        assert recorder.why_it_stays(f"aten::{name}") is None
    assert recorder.why_it_stays("mine::mv") is None
    for name, first in recorder.PRODUCTS.items():
        space, _, word = name.partition("::")
        assert hasattr(getattr(torch.ops, space), word) and first in (0, 1)


# --- what it would gain ---


def test_predictions_are_those_of_explain() -> None:
    """Products on the CPU are predicted for an H200, unless a device is given."""
    a, b = torch.randn(300, 260), torch.randn(500, 260)
    (product,) = recorded(lambda: a @ b.t()).products
    found = torch_sgemm.explain(a, b.t(), device=torch_sgemm.Device())
    seconds = {verdict.name: verdict.seconds for verdict in found.verdicts}
    assert product.row == found.chosen and product.predicted == seconds[found.chosen]
    assert product.predicted_torch == seconds["aten"] and product.measured is None
    assert product.gain == seconds["aten"] / seconds[found.chosen] >= 1
    assert product.flops == 2 * 300 * 500 * 260


def test_predictions_know_strides_and_alignment() -> None:
    a = torch.randn(101, 204)[1:, 1:202]
    b = torch.randn(201, 1000)
    (product,) = recorded(lambda: a @ b).products
    found = torch_sgemm.explain(a, b, device=torch_sgemm.Device())
    seconds = {verdict.name: verdict.seconds for verdict in found.verdicts}
    assert product.predicted == seconds[found.chosen]


def test_for_a_device_that_is_described() -> None:
    a100 = torch_sgemm.Device(
        arch=80, sms=108, clock_ghz=1.41, bandwidth_gbs=1500, l2_mb=40, code_arch=80
    )
    a = torch.randn(512, 512)
    found = recorded(lambda: a @ a, device=a100)
    assert [p.row for p in found.products] == ["aten"] and found.products[0].gain == 1
    assert "No row of this build" in str(found) and "8.0, 108 SMs" in str(found)
    with pytest.raises(RuntimeError, match="accepted: torch_sgemm.Device"):
        recorded(lambda: None, device="cuda")


def test_a_build_without_kernels_for_gpus_predicts_nothing_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch_sgemm.measure.record.kernels", lambda: [])
    assert Record(None).described("cuda:0") == torch_sgemm.Device()


def test_measuring_waits_for_the_end() -> None:
    with torch_sgemm.recording() as record, pytest.raises(RuntimeError, match="still going on"):
        record.measure()
    record.measure()  # nothing on a GPU: nothing to measure


def test_what_is_measured_is_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands have the same sizes, strides and alignment; they are on the CPU instead of a GPU."""
    sides: list[Callable[[], None]] = []
    seen: list[tuple] = []

    def run_once(runs: list[Callable[[], None]], device: torch.device) -> list[float]:
        with torch_sgemm.recording() as again:
            for run in runs:
                run()
        seen.extend((p.label, p.calls, p.predicted) for p in again.products)
        sides.extend(runs)
        return [4e-6, 2e-6]

    monkeypatch.setattr("torch_sgemm.measure.record._runs_on_gpu", lambda device: True)
    monkeypatch.setattr(timing, "seconds_by_turns", run_once)
    a, b = torch.randn(3, 101, 204)[:, 1:, 1:202], torch.randn(201, 30)

    def program() -> None:
        a @ b.expand(3, 201, 30)
        torch.addmm(torch.ones(30), a[0], b, beta=0.5, alpha=2)
        F.linear(a[1:2, ::2], torch.randn(60, 201)[::2])

    found = recorded(program, device=torch_sgemm.Device())
    predicted = [(p.label, 2, p.predicted) for p in found.products]
    found.measure()
    assert len(sides) == 2 * len(predicted) == 6
    monkeypatch.undo()
    assert {label for label, *_ in seen} == {label for label, *_ in predicted}
    assert all(p.measured == 2e-6 and p.gain == 2 for p in found.products)
    found.measure()
    assert len(sides) == 6  # once is enough


def test_only_a_lack_of_memory_leaves_a_product_unmeasured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(message: str) -> Callable:
        def fail(runs: list, device: torch.device) -> list[float]:
            raise RuntimeError(message)

        return fail

    a = torch.randn(8, 8)
    found = recorded(lambda: a @ a, device=torch_sgemm.Device())
    monkeypatch.setattr("torch_sgemm.measure.record._runs_on_gpu", lambda device: True)
    lacking = "CUDA out of memory. Tried to allocate 8 bytes for a product of torch_sgemm."
    monkeypatch.setattr(timing, "seconds_by_turns", failing(lacking))
    found.measure()
    assert found.products[0].measured is None
    monkeypatch.setattr(timing, "seconds_by_turns", failing("another"))
    with pytest.raises(RuntimeError, match="another"):
        found.measure()


def test_products_are_ordered_by_time_and_the_text_has_all() -> None:
    small, large = torch.randn(8, 8), torch.randn(700, 700)

    def program() -> None:
        small @ small
        large @ large

    found = recorded(program)
    assert [p.m for p in found.products] == [700, 8]
    for word in ("700 x 700 x 700 NN", "8 x 8 x 8 NN", "2 float32 products", "gain", "predicted"):
        assert word in str(found)


def test_the_record_outlives_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), torch_sgemm.recording() as record:
        torch.ones(3, 4) @ torch.ones(4, 5)
        raise ZeroDivisionError
    assert len(record.products) == 1
    record.measure()


@pytest.mark.gpu
def test_measured_on_a_gpu() -> None:
    layer = nn.Linear(512, 1024, device="cuda")
    x = torch.randn(4096, 512, device="cuda", requires_grad=True)
    found = recorded(lambda: layer(x).sum().backward())
    assert len(found.products) == 3 and all(p.measured is None for p in found.products)
    assert all(p.device == "cuda:0" for p in found.products)
    found.measure()
    for product in found.products:
        assert 0 < product.measured < 0.1 and 0 < product.measured_torch < 0.1
    assert "measured" in str(found)
    with torch_sgemm.enabled():
        assert len(recorded(lambda: layer(x)).products) == 1
