"""Programs that tracers record: torch.jit.trace, make_fx, export, torch.fx and torch.jit.script."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import torch_sgemm

WEIGHT = torch.randn(6, 8)
PACKED = torch_sgemm.pack(WEIGHT.t(), frozen=True)
LAYERS = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8)).requires_grad_(False)


class SelfAttention(nn.Module):
    """A layer whose inputs are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x)[0]


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda x: torch_sgemm.matmul(x, WEIGHT.t()),
    "matmul of a packed matrix": lambda x: torch_sgemm.matmul(x, PACKED),
    "matmul of batches": lambda x: torch_sgemm.matmul(x, x.mT),
    "matmul with a vector": lambda x: torch_sgemm.matmul(x, WEIGHT[0]),
    "linear": lambda x: torch_sgemm.linear(x, WEIGHT, None, "gelu"),
    "linear of a packed matrix": lambda x: torch_sgemm.linear(x, PACKED, None, "gelu"),
    "attention": lambda x: torch_sgemm.attention(*[x.unflatten(-1, (2, 4)).transpose(1, 2)] * 3),
    "layers": torch_sgemm.convert(copy.deepcopy(LAYERS)),
    "packed layers": torch_sgemm.convert(copy.deepcopy(LAYERS), pack=True),
    "attention layer": torch_sgemm.convert(SelfAttention()).eval(),
}


@pytest.mark.filterwarnings("ignore")  # torch.jit.trace is deprecated, and warns of each condition
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_takes_other_sizes(name: str) -> None:
    """torch.jit.trace records numbers that Python computes: none may come from a shape."""
    program = PROGRAMS[name]
    traced = torch.jit.trace(program, (torch.randn(2, 3, 8),))
    for sizes in ((5, 3), (2, 7), (1, 4)):
        x = torch.randn(*sizes, 8)
        torch.testing.assert_close(traced(x), program(x))


@pytest.mark.parametrize("kernel", torch_sgemm.torch_ops.attention.KERNELS)
def test_attention_of_fake_tensors_keeps_its_kernel(kernel: str) -> None:
    """A tracer's mode makes has_torch_function() true for every tensor."""

    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch_sgemm.attention(x, x, x, kernel=kernel)

    x = torch.randn(2, 3, 16, 8)
    graphs = [make_fx(Module(), tracing_mode=mode)(x).graph for mode in ("fake", "symbolic")]
    for strict in (False, True):
        graphs.append(torch.export.export(Module(), (x,), strict=strict).graph)
    for graph in graphs:
        (call,) = [x for x in graph.nodes if x.target is torch.ops.sgemm.attention.default]
        assert kernel in (*call.args, *call.kwargs.values(), "auto")


def test_a_converted_attention_layer_is_one_node() -> None:
    """As PyTorch's own, whose code torch.fx can't follow either."""
    module = SelfAttention().eval()
    traced = torch.fx.symbolic_trace(torch_sgemm.convert(copy.deepcopy(module)))
    (node,) = [node for node in traced.graph.nodes if node.op == "call_module"]
    assert node.target == "layer"
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(traced(x), module(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("model", [LAYERS, SelfAttention()], ids=["layers", "attention"])
def test_scripts_of_converted_layers_are_refused(model: nn.Module) -> None:
    converted = torch_sgemm.convert(copy.deepcopy(model))
    with pytest.raises(RuntimeError, match="torch.jit.script can't compile .*; accepted: "):
        torch.jit.script(converted)
    torch.jit.script(torch_sgemm.restore(converted))
