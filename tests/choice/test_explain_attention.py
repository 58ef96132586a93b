"""``explain_attention``: the kernel that a call takes, and why, here and on other devices."""

from __future__ import annotations

import pytest
import torch

import torch_sgemm
from torch_sgemm import Device, explain_attention

H200 = Device()


def tensors(*shape: int, keys: int | None = None, device: str = "meta") -> list[torch.Tensor]:
    batch, heads, rows, depth = shape
    others = (batch, heads, rows if keys is None else keys, depth)
    return [torch.empty(x, device=device) for x in (shape, others, others)]


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [((8, 16, 512, 64), "split"), ((2, 32, 4096, 128), "split"), ((64, 12, 32, 64), "aten")],
)
def test_the_faster_kernel_is_chosen(shape: tuple[int, ...], chosen: str) -> None:
    found = explain_attention(*tensors(*shape), device=H200)
    ours, pytorch = found.verdicts
    assert (ours.name, pytorch.name) == ("split", "aten")
    assert found.chosen == chosen and ours.reason == pytorch.reason == ""
    assert (0 < ours.seconds < pytorch.seconds) == (chosen == "split") and pytorch.seconds > 0
    lines = str(found).splitlines()
    other = "aten" if chosen == "split" else "split"
    assert [line.split()[0] for line in lines] == ["kernel", chosen, other]
    assert all(line.endswith("chosen" if chosen in line else "slower") for line in lines[1:])


def test_masks_and_causality_count() -> None:
    q, k, v = tensors(4, 16, 1024, 64)
    plain, causal, masked = (
        explain_attention(q, k, v, **kwargs, device=H200).verdicts[0].seconds
        for kwargs in ({}, {"is_causal": True}, {"attn_mask": q.new_empty(1024, 1024)})
    )
    assert 0 < causal < plain < masked


@pytest.mark.parametrize(
    ("device", "depth", "reason"),
    [
        (Device(arch=80, sms=108), 64, "needs a GPU of compute capability 9.0"),
        (Device("cpu"), 64, "needs a GPU of compute capability 9.0"),
        (H200, 20, "the last dimension is no multiple of 8, or above 128"),
        (H200, 136, "the last dimension is no multiple of 8, or above 128"),
    ],
)
def test_reasons(device: Device, depth: int, reason: str) -> None:
    operands = tensors(8, 16, 512, depth)
    found = explain_attention(*operands, device=device)
    assert found.chosen == "aten" and found.verdicts[0].reason == reason
    assert reason in str(found)
    with pytest.raises(RuntimeError, match=f"'kernel' is 'split': {reason}"):
        explain_attention(*operands, kernel="split", device=device)


def test_an_empty_call_is_pytorch_s() -> None:
    found = explain_attention(*tensors(8, 16, 512, 64, keys=0), device=H200)
    assert found.chosen == "aten" and found.verdicts[0].reason == "a size is 0"


def test_a_kernel_can_be_asked_for() -> None:
    operands = tensors(64, 12, 32, 64)
    ours = explain_attention(*operands, kernel="split", device=H200)
    assert ours.chosen == "split" and ours.verdicts[1].reason == "not asked for"
    theirs = explain_attention(*operands, kernel="aten", device=H200)
    assert theirs.chosen == "aten" and theirs.verdicts[0].reason == "not asked for"


def test_tensors_of_the_cpu_are_pytorch_s() -> None:
    assert explain_attention(*tensors(1, 2, 30, 64, device="cpu")).chosen == "aten"


def test_gradients_have_times_of_their_own() -> None:
    for operands in (tensors(8, 16, 512, 64), tensors(2, 32, 4096, 128)):
        forward, backward = (
            explain_attention(*operands, device=H200, backward=x) for x in (False, True)
        )
        assert forward.chosen == backward.chosen == "split"
        for x, y in zip(forward.verdicts, backward.verdicts, strict=True):
            assert 0 < x.seconds < y.seconds
        assert backward.verdicts[0].seconds < backward.verdicts[1].seconds
    refused = explain_attention(*tensors(8, 16, 512, 20), device=H200, backward=True)
    assert refused.chosen == "aten"


@pytest.mark.gpu
def test_it_says_what_attention_takes() -> None:
    for shape in ((8, 16, 512, 64), (64, 12, 32, 64), (8, 16, 512, 20)):
        q, k, v = (torch.randn(shape, device="cuda") for _ in range(3))
        chosen = explain_attention(q, k, v).chosen
        expected = torch_sgemm.attention(q, k, v, kernel=chosen)
        assert torch.equal(torch_sgemm.attention(q, k, v), expected)


def test_wrong_arguments() -> None:
    q, k, v = tensors(8, 16, 512, 64)
    with pytest.raises(RuntimeError, match="argument 'kernel' is 'unsplit'"):
        explain_attention(q, k, v, kernel="unsplit", device=H200)
    with pytest.raises(RuntimeError, match="argument 'device' is 'cuda'"):
        explain_attention(q, k, v, device="cuda")
    with pytest.raises(RuntimeError, match="'key' has"):
        explain_attention(q, k[..., :32], v, device=H200)
    with pytest.raises(TypeError, match="explain_attention: argument 'value' is None; accepted"):
        explain_attention(q, k, None, device=H200)
    with pytest.raises(TypeError, match="explain_attention: argument 'attn_mask' is 3; accepted"):
        explain_attention(q, k, v, 3, device=H200)
    with pytest.raises(RuntimeError, match="neither a CPU nor a CUDA device"):
        explain_attention(q, k, v)
