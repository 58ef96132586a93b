"""The benchmark of users' products: their data, the sides beside them, and what it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.records import gpu_record
from test_benchmarks import measured

from benchmarks import errors, problems, record, sides, suite, users
from benchmarks.__main__ import main
from benchmarks.data import KINDS, USERS, matrices
from benchmarks.problems import Problem

CPU = torch.device("cpu")
SMALL = Problem(40, 24, 33)
GRAMS = [Problem(20, 20, 28, "NT", gram=True), Problem(20, 20, 28, "TN", gram=True)]


def row(group: str, data: str, ratio: float, **changes) -> dict:
    """Makes a row as ``users`` records it."""
    about = {"group": group, "data": data, "label": f"{group} {data}", "chosen": "x"}
    figures = {"percent_of_torch": 100 * ratio, "torch_us": 8.0, "kernel_us": 8.0 / ratio}
    return measured("auto") | about | figures | changes


# --- products and data ---


def test_products_are_told_apart_and_have_data() -> None:
    assert len({p.label for p in users.PRODUCTS}) == len(users.PRODUCTS)
    assert {p.data for p in users.PRODUCTS} <= {*KINDS, *USERS}
    assert {p.data for p in users.PRODUCTS} >= {*USERS}
    assert not {*KINDS} & {*USERS}
    routers = [p for p in users.PRODUCTS if p.group == "router"]
    assert len(routers) == len(users.ROUTERS) * len(users.TOKENS) == 15
    for p in (p.problem for p in users.PRODUCTS):
        assert p.ops in ({"NT", "TN"} if p.gram else {"NN", "NT", "TN"})
        assert not p.gram or p.m == p.n


def test_groups_are_explained() -> None:
    assert all(f"`{p.group}`" in users.LEGEND for p in users.PRODUCTS)


@pytest.mark.parametrize("product", users.PRODUCTS, ids=lambda p: p.label)
def test_tiny_products_are_small_and_of_the_same_kind(product: users.Product) -> None:
    tiny = product.tiny()
    p, full = tiny.problem, product.problem
    assert p.flops < 1e5 and (p.m <= full.m and p.n <= full.n and p.k <= full.k)
    assert (tiny.group, tiny.data, p.ops, p.gram) == (
        product.group, product.data, full.ops, full.gram,
    )  # fmt: skip
    assert (p.batch > 1) == (full.batch > 1) and (not p.gram or p.m == p.n)


@pytest.mark.parametrize("name", USERS)
def test_data_follows_the_seed(name: str) -> None:
    a, b = matrices(name, SMALL, CPU, 1)
    again, other = matrices(name, SMALL, CPU, 1), matrices(name, SMALL, CPU, 2)
    assert a.shape == (40, 33) and b.shape == (33, 24) and a.dtype == b.dtype == torch.float32
    assert bool(a.isfinite().all()) and bool(b.isfinite().all())
    assert torch.equal(a, again[0]) and torch.equal(b, again[1])
    assert not torch.equal(a, other[0]) and not torch.equal(b, other[1])


def test_data_is_what_its_kind_says() -> None:
    def of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return matrices(name, Problem(200, 8, 200), CPU, 3)

    a, b = of("bf16_activations")
    assert torch.equal(a, a.bfloat16().float()) and not torch.equal(b, b.bfloat16().float())
    a, _ = of("one_hot")
    assert bool(((a == 0) | (a == 1)).all()) and bool((a.sum(dim=1) == 1).all())
    a, _ = of("adjacency")
    assert bool(((a == 0) | (a == 1)).all()) and 12 < float(a.sum(dim=1).mean()) < 20
    for x in of("uint8_values"):
        assert torch.equal(x, x.byte().float()) and x.max() > 200
    a, _ = of("tanh_outputs")
    assert 0.9 < float(a.abs().max()) <= 1


@pytest.mark.parametrize("problem", GRAMS, ids=lambda p: p.label)
def test_a_gram_matrix_has_one_operand(problem: Problem) -> None:
    pool = problems.make_pool(problem, CPU, 1, l2_bytes=10 * problem.bytes)
    assert len(pool.sets) > 1 and problem.bytes == 4 * (20 * 28 + 20 * 20)
    for a, b, c in pool.sets:
        assert a.data_ptr() == b.data_ptr() != c.data_ptr() and torch.equal(b, a.mT)
        assert (a.is_contiguous(), b.is_contiguous()) == (problem.ops == "NT", problem.ops == "TN")
    a, b = matrices("normal", problem, CPU, 1)
    assert torch.equal(b, a.mT)


# --- torch in TF32 and with bfloat16 operands ---


@pytest.mark.parametrize("fails", [False, True])
def test_tf32_is_on_for_a_call_and_no_longer(fails: bool, monkeypatch) -> None:
    seen = []

    def mm(*_, **__) -> None:
        seen.append(getattr(torch.backends.cuda.matmul, name))
        if fails:
            raise RuntimeError("no product")

    sides.strict_float32()
    name, strict, allowed = sides._precision()
    monkeypatch.setattr(torch, "mm", mm)
    operands = problems.make_pool(SMALL, CPU, 1).sets[0]
    float32, tf32 = sides.torch_side(SMALL), sides.tf32_side(SMALL)
    for side in (float32, tf32, float32):
        try:
            side.run(operands)
        except RuntimeError:
            assert fails
        assert getattr(torch.backends.cuda.matmul, name) == strict
    assert seen == [strict, allowed, strict]


@pytest.mark.parametrize("problem", [SMALL, Problem(9, 8, 40, "TT"), *GRAMS], ids=lambda p: p.label)
def test_operands_are_rounded_to_bfloat16(problem: Problem) -> None:
    pool = problems.make_pool(problem, CPU, 1)
    side, _, _ = sides.bf16_sides(pool)
    found = errors.Reference(problem, pool.sets[0], 1).errors(side)
    assert 100 < found.max < 2.0**18  # of rounding two operands and the result to 8 bits
    for s in pool.sets:
        side.run(s)
        expected = torch.mm(s.a.bfloat16().float(), s.b.bfloat16().float())
        torch.testing.assert_close(s.c, expected, rtol=2.0**-7, atol=1e-2)


@pytest.mark.parametrize("problem", [SMALL, *GRAMS], ids=lambda p: p.label)
def test_own_sides_take_operands_of_16_bits(problem: Problem) -> None:
    pool = problems.make_pool(problem, CPU, 1)
    _, own, mixed = sides.bf16_sides(pool)
    for s in pool.sets:
        a, b = s.a.bfloat16().float(), s.b.bfloat16().float()
        own.run(s)
        torch.testing.assert_close(s.c, a @ b)
        mixed.run(s)
        torch.testing.assert_close(s.c, s.a @ b)


# --- runs ---


def test_runs_on_the_cpu(tmp_path) -> None:
    path = tmp_path / "r.json"
    assert main(["users", "--device", "cpu", "--rounds", "2", "--output", str(path)]) == 0
    found = record.load(path)
    wanted = dict.fromkeys(p.tiny() for p in users.PRODUCTS)
    assert [r["label"] for r in found["rows"]] == [p.label for p in wanted]
    for r in found["rows"]:
        assert r["correct"] and r["kernel_us"] > 0 and r["torch_us"] > 0
        assert "tf32_us" not in r and ("bf16_us" in r) == (r["batch"] == 1)
        assert 0 <= r["error_mean"] <= r["error_max"] <= r["error_bound"]
    assert (
        found["summary"] == [pytest.approx(x) for x in suite.summarise(found["rows"])]
        and found["left_out"] == []
    )
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_groups_and_data_are_chosen(tmp_path) -> None:
    path = tmp_path / "r.json"
    run = ["users", "--device", "cpu", "--rounds", "2", "--group", "gram", "graph"]
    assert main([*run, "--data", "normal", "one_hot", "--output", str(path)]) == 0
    rows = record.load(path)["rows"]
    assert [(r["group"], r["data"]) for r in rows] == [("gram", "normal"), ("graph", "one_hot")]


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (["--group", "nobody"], "lm_head"),
        (["--data", "unheard_of"], "one_hot"),
        (["--group", "router", "--data", "one_hot"], "no product of --group router"),
    ],
)
def test_what_nobody_multiplies_is_refused(wrong: list[str], shown: str, tmp_path, capsys) -> None:
    path = tmp_path / "r.json"
    assert main(["users", "--device", "cpu", *wrong, "--output", str(path)]) == 2
    assert shown in " ".join(capsys.readouterr().out.split())
    assert not path.exists()


def test_what_does_not_fit_is_left_out(tmp_path, capsys, monkeypatch) -> None:
    problem, device = Problem.square(1024), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 2**30))
    assert users.lacking_memory(problem, device) == ""
    assert users.lacking_memory(replace(problem, batch=100), CPU) == ""
    why = users.lacking_memory(replace(problem, batch=100), device)
    assert why == "takes about 5.9 GiB of the GPU's memory, 1.0 are free"
    monkeypatch.setattr(users, "lacking_memory", lambda *_: why)
    path = tmp_path / "r.json"
    assert main(["users", "--device", "cpu", "--group", "lm_head", "--output", str(path)]) == 0
    found = record.load(path)
    assert found["rows"] == [] and len(found["left_out"]) == 1
    assert "Left out: lm_head" in capsys.readouterr().out and why in found["left_out"][0]


@pytest.mark.gpu
def test_runs_on_a_gpu(tmp_path) -> None:
    path = tmp_path / "r.json"
    run = ["users", "--device", "cuda", "--budget", "0.1", "--group", "gram", "attention"]
    assert main([*run, "--data", "normal", "causal_softmax", "--output", str(path)]) == 0
    found = record.load(path)
    assert len(found["rows"]) + len(found["left_out"]) == 4
    for r in found["rows"]:
        assert r["correct"] and r["torch_us"] > 0 and r["tf32_us"] > 0
        assert ("bf16_us" in r) == (r["batch"] == 1)
    for r in (r for r in found["rows"] if r["group"] == "gram"):
        assert r["torch_error_max"] < r["tf32_error_max"] < r["bf16_error_max"]


# --- the report ---


def test_the_report_writes_tables_and_chart(tmp_path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    names = ("users", "users-chart")
    page.write_text("".join(f"<!-- begin:{x} -->\nold\n<!-- end:{x} -->\n" for x in names))
    tf32 = {"tf32_us": 2.0, "tf32_error_max": 1500.0}
    rows = [
        row("router", "normal", 2.0, **tf32, bf16_us=1.0, bf16_error_max=3.0),
        row("router", "one_hot", 0.5, batch=3, **tf32),
        row("graph", "one_hot", 3.0, failed="why", correct=False, **tf32),
        row("graph", "adjacency", 3.0, correct=False, tf32_failed="why"),
    ]
    about = {"summary": suite.summarise(rows), "left_out": ["lm_head: too large"]}
    found = gpu_record("users", rows, **about)
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    cube = "64 x 64 x 64 NN"
    for line in (
        "| router | 2 | 0 | 1.00 | 0.50 (router one_hot) |",
        f"| router | {cube} | normal | x | 8.00 µs | 4.00 µs | 2.00 | 2.00 / 2.00 "
        "| 4.00 (1500) | 8.00 (3.00) |",
        f"| router | 3 x {cube} | one_hot | x | 8.00 µs | 16.0 µs | 0.50 | 2.00 / 2.00 "
        "| 4.00 (1500) | - |",
        f"| graph | {cube} | one_hot | failed | - | - | - | - | - | - |",
        f"| graph | {cube} | adjacency | x | 8.00 µs | 2.67 µs | WRONG | 2.00 / 2.00 | - | - |",
    ):
        assert line in text, line
    assert users.LEGEND in text and "Left out: lm_head: too large." in text
    chart = "plots/users-test-gpu.png"
    assert f"](results/{chart})" in text and (results / chart).exists()
