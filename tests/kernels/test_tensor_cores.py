"""The model in torch_sgemm/tensor_cores.py: by hand, and against a GPU's bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.table import Kernel, arch
from torch import Tensor

from torch_sgemm.measure import tensor_cores

DTYPES = (torch.float16, torch.bfloat16)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def one_step(total: float, x: list[float], y: list[float], dtype: torch.dtype) -> float:
    """Models one step; zeros follow x and y."""
    rows = torch.zeros(2, 1, 16, dtype=torch.float64)
    rows[0, 0, : len(x)], rows[1, 0, : len(y)] = torch.tensor(x), torch.tensor(y)
    start = torch.full((1, 1), total, dtype=torch.float64)
    return tensor_cores.step(start, rows[0], rows[1], dtype).item()


def test_what_is_cut_off() -> None:
    half, one = torch.float16, 1.0
    assert one_step(0, [one, 2.0**-13], [one, 2.0**-13], half) == 1  # 24 bits are left of the sum
    assert one_step(0, [one, 2.0**-12], [one, 2.0**-11], half) == 1 + 2.0**-23
    assert one_step(-1, [one, 2.0**-13], [one, 2.0**-12], half) == 2.0**-25  # none is lost so far
    assert one_step(-1, [one, 2.0**-13], [one, 2.0**-13], half) == 0
    assert one_step(1, [-(2.0**-13)], [2.0**-13], half) == 1  # towards zero


def test_exponents_are_added_and_not_the_product_s() -> None:
    """1.5 * 1.5 is 2.25, but aligns its neighbours to 2^0; a subnormal counts as 2^-14."""
    x = [1.5, 2.0**-13]
    assert one_step(-2.25, x, [1.5, 2.0**-12], torch.float16) == 0  # below 2^1, the accumulator's
    least = 2.0**-24
    assert one_step(0, [least, 2.0**-12], [2.0**15, 2.0**-13], torch.float16) == 2.0**-9
    normal = one_step(0, [2.0**-9, 2.0**-12], [1.0, 2.0**-13], torch.float16)
    assert normal == 2.0**-9 + 2.0**-25


def test_the_least_alignment() -> None:
    tiny, bfloat16 = 2.0**-79, torch.bfloat16
    assert one_step(0, [tiny] * 16, [tiny] * 16, bfloat16) == 0  # each is cut off at 2^-158
    assert one_step(0, [tiny * 2] * 16, [tiny * 2] * 16, bfloat16) == 0
    assert one_step(0, [2.0**-77] * 16, [2.0**-76] * 16, bfloat16) == 2.0**-149


# --- a GPU ----------------------------------------------------------------------------------

KERNEL = r"""
// A tile a block: a is (16, 16), b (8, 16), 16-bit numbers; c and d are (16, 8).
extern "C" __global__ void mma_step(const unsigned* a, const unsigned* b, const float* c,
                                    float* d) {
  const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4, at = g * 8 + 2 * t, below = at + 64;
  a += blockIdx.x * 128, b += blockIdx.x * 64, c += blockIdx.x * 128, d += blockIdx.x * 128;
  const unsigned *x = a + g * 8 + t, *y = b + g * 8 + t;
  float s0 = c[at], s1 = c[at + 1], s2 = c[below], s3 = c[below + 1];
  asm("mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
      : "r"(x[0]), "r"(x[64]), "r"(x[4]), "r"(x[68]), "r"(y[0]), "r"(y[4]));
  d[at] = s0, d[at + 1] = s1, d[below] = s2, d[below + 1] = s3;
}
"""
WGMMA = r"""
// A tile a block: a is (64, 16), b (8, 16), 16-bit numbers; c and d are (64, 8).
extern "C" __global__ void wgmma_step(const unsigned* a, const unsigned* b, const float* c,
                                      float* d) {
  __shared__ __align__(128) unsigned panel[64];  // two blocks of 8 rows of 16 bytes
  const unsigned thread = threadIdx.x, t = thread % 4, row = thread / 32 * 16 + thread % 32 / 4;
  const unsigned at = row * 8 + 2 * t, below = at + 64;
  a += blockIdx.x * 512, b += blockIdx.x * 64, c += blockIdx.x * 512, d += blockIdx.x * 512;
  if (thread < 64) panel[thread % 8 / 4 * 32 + thread / 8 * 4 + thread % 4] = b[thread];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  const unsigned long long address = __cvta_generic_to_shared(panel);
  const unsigned long long view = (address & 0x3ffff) >> 4 | 8ull << 16 | 16ull << 32;
  const unsigned* x = a + row * 8 + t;
  float s0 = c[at], s1 = c[at + 1], s2 = c[below], s3 = c[below + 1];
  const unsigned x0 = x[0], x1 = x[64], x2 = x[4], x3 = x[68];
  asm volatile(
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.TYPE.TYPE "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      : "+f"(s0), "+f"(s1), "+f"(s2), "+f"(s3)
      : "r"(x0), "r"(x1), "r"(x2), "r"(x3), "l"(view)
      : "memory");
  d[at] = s0, d[at + 1] = s1, d[below] = s2, d[below + 1] = s3;
}
"""
ELEMENTS = 102_400  # of a test


def spread(shape: tuple[int, ...], least: int, most: int) -> Tensor:
    """Normal numbers times powers of two."""
    by = torch.randint(least, most + 1, shape, device="cuda").float()
    return torch.randn(shape, device="cuda") * torch.exp2(by)


def some(share: float, shape: tuple[int, ...], x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.rand(shape, device="cuda") < share, x, y)


def dominating(shape: tuple[int, ...], _: bool) -> Tensor:
    x = spread(shape, -10, -8)
    x[..., 5] *= 2.0**22
    return x


# Operands of a shape; whether they are float16.
KINDS: dict[str, Callable[[tuple[int, ...], bool], Tensor]] = {
    "normal": lambda shape, _: torch.randn(shape, device="cuda"),
    "spread": lambda shape, _: spread(shape, -12, 12),
    "subnormal": lambda shape, half: spread(shape, -22, -10) if half else spread(shape, -131, -110),
    "some subnormal": lambda shape, half: some(
        0.3, shape, spread(shape, *((-23, -12) if half else (-132, -120))), spread(shape, 0, 10)
    ),
    "zeros": lambda shape, _: some(
        0.7, shape, torch.zeros(shape, device="cuda"), spread(shape, 0, 3)
    ),
    "one dominating": dominating,
    "sums below 2^-126": lambda shape, half: spread(shape, *((-24, -14) if half else (-78, -60))),
    "least sums": lambda shape, half: spread(shape, *((-24, -20) if half else (-80, -70))),
    "large": lambda shape, half: spread(shape, *((8, 13) if half else (40, 58))),
    "one sign": lambda shape, _: spread(shape, -3, 3).abs(),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def differing(found: Tensor, expected: Tensor) -> int:
    """Returns the number of elements with other bits, not counting the sign of a zero."""
    return int((found != expected.float()).sum())


INSTRUCTIONS = {"mma_step": (KERNEL, 16, None), "wgmma_step": (WGMMA, 64, "90a")}


@pytest.mark.gpu
@each_dtype
@each_kind
@pytest.mark.parametrize("start", ["zero", "alike", "small", "large", "subnormal"])
@pytest.mark.parametrize("instruction", INSTRUCTIONS)
def test_bits_of_a_step(instruction: str, kind: str, start: str, dtype: torch.dtype) -> None:
    if arch() != 90:
        pytest.skip("the model is Hopper's")
    source, rows, capability = INSTRUCTIONS[instruction]
    tiles, half = ELEMENTS // (rows * 8), dtype == torch.float16
    a = KINDS[kind]((tiles, rows, 16), half).to(dtype)
    b = KINDS[kind]((tiles, 8, 16), half).to(dtype)
    size = (a.double() @ b.double().mT).abs().mean().clamp(min=2.0**-126)
    c = torch.randn(tiles, rows, 8, device="cuda").double()
    scale = {"zero": 0.0, "alike": size, "small": size / 4096, "large": size * 256}
    c = (c * scale.get(start, 2.0**-132)).float()
    d = torch.empty_like(c)
    source = source.replace("TYPE", "f16" if half else "bf16")
    kernel = torch.cuda._compile_kernel(source, instruction, compute_capability=capability)
    words = [x.view(torch.int32) for x in (a, b)]
    kernel(grid=(tiles, 1, 1), block=(rows * 2, 1, 1), args=[*words, c, d])
    totals = [
        tensor_cores.step(*(x[tile].double() for x in (c, a, b)), dtype) for tile in range(tiles)
    ]
    assert d.isfinite().all() and d.numel() > 100_000
    assert differing(d, torch.stack(totals)) == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "subnormal" not in kind])
@pytest.mark.parametrize("k", [16, 32, 64])
@pytest.mark.rows(name="unsplit", takes_float32=False, tiles=False, device="cuda")
def test_bits_of_a_product(row: Kernel, kind: str, k: int) -> None:
    """The row multiplies bfloat16 operands without a copy, 32 of k at a time."""
    if arch() != 90:
        pytest.skip("the model is Hopper's")
    x, y = (KINDS[kind]((320, k), False).bfloat16() for _ in range(2))
    found = torch.ops.sgemm.mm(x, y.t(), kernel=row.name)
    zero = torch.zeros(320, 320, dtype=torch.float64, device="cuda")
    total = zero
    for q in range(0, k, 32):
        parts = (m[:, q : q + 32].double() for m in (x, y))
        total = (total + tensor_cores.multiplied(zero, *parts, torch.bfloat16)).float().double()
    assert found.isfinite().all() and found.numel() > 100_000
    assert differing(found, total) == 0
