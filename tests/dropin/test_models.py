"""Models of transformers under ``enable()``: results, gradients, what arrives, CUDA graphs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from support.bounds import UNIT
from support.table import arch, each_device, runnable
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.pytorch_utils import Conv1D

import torch_sgemm
from benchmarks.workloads import WORKLOADS, Task, float32_convolutions

pytestmark = pytest.mark.xdist_group("models")  # one process imports transformers

NAMES = ("bert-large", "vit-l16", "gpt2-medium")
each_model = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def no_tf32() -> Iterator[None]:
    with float32_convolutions():
        yield


def made(name: str, device: str, small: bool, attention: str = "eager") -> Task:
    """A model; a quarter of the benchmark's batch is enough where the model has its full size."""
    task = WORKLOADS[name].make(torch.device(device), small, attention)
    return task if small else task.part(len(task.inputs) // 4)


def masked(task: Task) -> Task:
    """The same with attention's mask made beforehand: causal for GPT-2, of zeros for the others.

    Left to itself, transformers makes other masks under capture than outside of it, and some from
    constants that it copies from the host, which no capture allows.
    """
    (batch, tokens), device = task.evaluate()[0].shape[:2], task.inputs.device
    mask = torch.zeros(batch, 1, tokens, tokens, device=device)
    if task.model.config.model_type == "gpt2":
        mask += torch.full_like(mask, torch.finfo(torch.float32).min).triu(1)

    def output(model: nn.Module, inputs: Tensor) -> Tensor:
        return model(inputs, attention_mask=mask)[0]

    return dataclasses.replace(task, output=output)


def needs(kernel: str) -> None:
    """Skips where this GPU runs no row of a family."""
    if kernel not in ("auto", *(row.family for row in runnable("cuda"))):
        pytest.skip(f"no row of {kernel} runs on sm_{arch()}")


def trained(task: Task) -> Task:
    """The same with a loss, so that there are gradients; dropout stays off."""
    if task.training:
        return task
    targets = torch.randn_like(task.evaluate()[0])
    return dataclasses.replace(task, targets=targets, loss=nn.functional.mse_loss)


def products(model: nn.Module) -> Counter:
    """Counts the products of a forward and its backward from the model's layers.

    A linear layer makes one product, and two in backward, which are the gradients of its input and
    its weight. An attention layer makes two products of batches, q k' and p v, whose operands all
    need a gradient.
    """
    count = Counter()
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, Conv1D)):
            count["mm" if layer.bias is None else "addmm"] += 1
            count["mm"] += 2
    count["bmm"] += 6 * model.config.num_hidden_layers
    return count


def same_within_torchs_errors(
    name: str, ours: Tensor, theirs: Tensor, exact: Tensor, floor: float
) -> None:
    """Root mean squares: the largest of many errors is a matter of luck on either side."""
    error, torchs = (rms([x.double() - exact]) for x in (ours, theirs))
    assert error <= 2 * torchs + floor, name  # False for NaN


def rms(tensors: list[Tensor]) -> float:
    total = sum(float(x.double().square().sum()) for x in tensors)
    return math.sqrt(total / sum(x.numel() for x in tensors))


def check(task: Task, kernel: str, device: str) -> None:
    expected = products(task.model)
    output, gradients = task.evaluate()
    exact, exact_gradients = task.double().evaluate()
    with torch_sgemm.enabled(kernel, devices=(device,)):
        torch_sgemm.reset_stats()
        our_output, our_gradients = task.evaluate()
        stats = torch_sgemm.stats()
    assert stats.hits == dict(expected)
    assert stats.fallbacks == {}
    # A product may be off by 8 units where torch's happens to be nearly exact (docs/split.md), and
    # so may what is made of it. A gradient's floor has a unit of all of them together as well: that
    # of a key's bias is exactly 0, yet terms that cancel there have errors of the others' size.
    same_within_torchs_errors("output", our_output, output, exact, 8 * UNIT * rms([exact]))
    common = UNIT * rms(list(exact_gradients.values()))
    assert our_gradients.keys() == exact_gradients.keys()
    for parameter, gradient in our_gradients.items():
        other, reference = gradients[parameter], exact_gradients[parameter]
        floor = common + 8 * UNIT * rms([reference])
        same_within_torchs_errors(parameter, gradient, other, reference, floor)


@each_model
def test_small_on_the_cpu(name: str) -> None:
    check(trained(made(name, "cpu", small=True)), "ladder", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", "ladder", "split"])
@each_model
def test_small_on_a_gpu(name: str, kernel: str) -> None:
    needs(kernel)
    check(trained(made(name, "cuda", small=True)), kernel, "cuda")


@pytest.mark.gpu
@each_model
def test_full_size(name: str) -> None:
    check(trained(made(name, "cuda", small=False)), "auto", "cuda")


@each_model
def test_reference_is_float64_throughout(name: str) -> None:
    """Some code in transformers converts to float32, and such a model would be no reference."""

    class NoFloat32(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            assert getattr(result, "dtype", None) != torch.float32, function
            return result

    task = trained(made(name, "cpu", small=True)).double()
    with NoFloat32():
        output, gradients = task.evaluate()
    assert {x.dtype for x in (output, *gradients.values())} == {torch.float64}


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["auto", "split"])
@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
@each_model
def test_graph_of_a_forward_has_the_same_bits(name: str, small: bool, kernel: str) -> None:
    """Captured under enable() and replayed without it, also on other inputs."""
    needs(kernel)
    task = masked(made(name, "cuda", small))
    held = dataclasses.replace(task, inputs=task.inputs.clone())
    other = task.inputs.flip(0, 1)
    with torch_sgemm.enabled(kernel), torch.no_grad():
        expected = [task.output(task.model, x) for x in (task.inputs, other)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # the first call on a stream may set things up
            held.output(held.model, held.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        torch_sgemm.reset_stats()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = held.output(held.model, held.inputs)
        assert sum(torch_sgemm.stats().hits.values()) > 0
        assert torch_sgemm.stats().fallbacks == {}
    for inputs, bits in zip((task.inputs, other), expected, strict=True):
        held.inputs.copy_(inputs)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, bits)


@each_model
def test_mask_made_beforehand_is_the_models_own(name: str) -> None:
    task = made(name, "cpu", small=True)
    assert torch.equal(masked(task).evaluate()[0], task.evaluate()[0])


@each_device
def test_fused_attention_keeps_its_products(device: str) -> None:
    """With sdpa PyTorch's own kernel multiplies within attention; the layers' products arrive."""
    task = made("bert-large", device, small=True, attention="sdpa")
    with torch_sgemm.enabled("ladder", devices=(device,)):
        torch_sgemm.reset_stats()
        output, _ = task.evaluate()
        stats = torch_sgemm.stats()
    linear = sum(isinstance(layer, nn.Linear) for layer in task.model.modules())
    assert stats.hits == {"addmm": linear}
    assert stats.fallbacks == {}
    torch.testing.assert_close(output, task.evaluate()[0])
