"""The benchmark of other libraries' products: what it measures, what is missing, its tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.records import gpu_record
from torch import Tensor

from benchmarks import peer_builds, peers, record
from benchmarks.__main__ import main
from benchmarks.problems import Problem

CUBE = Problem.square(peers.SIZE)


def row(name: str, problem: Problem, ratio: float, **changes) -> dict:
    """Makes a row as ``peers`` records it."""
    group = peers.ROUTER if problem in peers.ROUTERS else peers.PRODUCT
    ways = peers.ROUTER_WAYS if group == peers.ROUTER else peers.WAYS
    about = {"group": group, "way": ways[name][0], "label": problem.label, "kernel": name}
    figures = {"percent_of_torch": 100 * ratio, "kernel_tflops": 50 * ratio}
    figures |= {"error_max": 2.0, "torch_error_max": 4.0, "as_exact": True}
    return about | problem.as_dict() | figures | changes


def recorded(rows: list[dict], *missing: str) -> dict:
    return gpu_record("peers", rows) | {"missing": list(missing)}


def test_ten_row_major_products_and_a_router() -> None:
    assert len(set(peers.PRODUCTS)) == 10 and CUBE in peers.PRODUCTS
    assert {p.ops for p in peers.PRODUCTS} == {"NN"} and {p.ops for p in peers.ROUTERS} == {"NT"}
    assert all(p.n % 64 == 0 for p in peers.ROUTERS)  # HPC-Ops takes no others
    for p in peers.PRODUCTS:  # CUTLASS's loads have four elements
        assert p.n % 4 == 0 and p.k % 4 == 0 and p.k <= 2**17  # GEMMul8's largest k


def test_runs_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "r.json"
    assert main(["peers", "--device", "cpu", "--rounds", "2", "--output", str(path)]) == 0
    found = record.load(path)
    for group, problems, own in (
        (peers.PRODUCT, peers.CPU_PRODUCTS, {"auto", "bf16"}),
        (peers.ROUTER, peers.CPU_ROUTERS, {"auto", "own_mixed", "bf16"}),
    ):
        rows = [r for r in found["rows"] if r["group"] == group]
        assert {r["kernel"] for r in rows} == own
        assert len(rows) == len(own) * len(problems)
    assert all(r["correct"] for r in found["rows"] if r["kernel"] in ("auto", "own_mixed"))
    assert not any(r["as_exact"] for r in found["rows"] if r["kernel"] == "bf16")
    assert len(found["missing"]) == len(peers.NAMES) - 3
    assert "Not measured: Triton, tf32x3: needs a GPU" in capsys.readouterr().out


def test_a_library_that_fails_is_a_row_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def product(name: str, _: Path | None) -> Callable[..., None]:
        def mm(a: Tensor, b: Tensor, out: Tensor) -> None:
            if name == "gemmul8" and len(a) == 64:
                raise ValueError("too large")
            torch.mm(a, b, out=out)

        return mm

    monkeypatch.setattr(peers, "_on_a_gpu", lambda: None)
    monkeypatch.setattr(peers, "product", product)
    path = tmp_path / "r.json"
    run = ["peers", "--device", "cpu", "--rounds", "2", "--way", "cutlass", "gemmul8"]
    assert main([*run, "--output", str(path)]) == 0
    found = record.load(path)
    assert found["missing"] == [] and len(found["rows"]) == 4
    (failed,) = [r for r in found["rows"] if "failed" in r]
    assert failed["failed"] == "ValueError: too large" and "as_exact" not in failed
    assert all(r["as_exact"] for r in found["rows"] if r is not failed)
    _, lines = peers.cells(found, peers.PRODUCT)
    assert lines[2][1] == "failed" and lines[2][2].endswith("(1 of 2)")


@pytest.mark.gpu
@pytest.mark.slow
def test_runs_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton is in PyTorch's wheel for CUDA; the libraries need their sources."""
    pytest.importorskip("triton")
    monkeypatch.setattr(peers, "PRODUCTS", (Problem.square(256), Problem(96, 80, 112)))
    path = tmp_path / "r.json"
    run = ["peers", "--budget", "0.05", "--way", "auto", "tf32x3", "bf16x6", "tf32", "gemmul8"]
    assert main([*run, "--output", str(path)]) == 0
    found = record.load(path)
    rows = {r["kernel"]: r for r in found["rows"] if r["group"] == peers.PRODUCT}
    assert set(rows) == {"auto", "tf32x3", "bf16x6", "tf32"}
    assert not any("failed" in r for r in found["rows"])
    assert all(r["error_max"] < 100 for name, r in rows.items() if name != "tf32")
    (missing,) = found["missing"]
    assert missing.startswith("GEMMul8") and "--sources" in missing


def test_the_tables() -> None:
    other = Problem(65536, 256, 256)
    rows = [
        row("auto", CUBE, 4.0), row("auto", other, 1.0),
        row("cutlass", CUBE, 1.5), row("cutlass", other, 1.0, failed="why"),
        row("tf32", CUBE, 8.0, error_max=600.0), row("tf32", other, 2.0, error_max=math.nan),
        row("own_mixed", peers.ROUTERS[0], 2.0),
    ]  # fmt: skip
    found = recorded(rows)
    columns, lines = peers.cells(found, peers.PRODUCT)
    assert columns[1] == "4096³" and columns[2] == "geometric mean"
    assert lines == [
        ["torch.mm, float32", "1.00", "1.00", "1.00", "4.00 / 4.00"],
        ["torch_sgemm, `auto`", "4.00", "2.00", "1.00", "2.00 / 2.00"],
        ["CUTLASS, 3xTF32", "1.50", "1.50 (1 of 2)", "1.50", "2.00 / 2.00"],
        ["torch.mm, TF32", "8.00", "4.00", "2.00", "600 / nan"],
    ]
    columns, lines = peers.cells(found, peers.ROUTER)
    assert columns == ["way", "16 tokens", "largest error"]
    assert lines[1] == ["torch_sgemm, `auto`, bfloat16 by float32", "2.00", "2.00"]


def test_the_report_writes_both_tables(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results"
    names = ("peers", "peers-router")
    page.write_text("".join(f"<!-- begin:{x} -->\nold\n<!-- end:{x} -->\n" for x in names))
    rows = [row("gemmul8", CUBE, 2.0), row("hpc_ops", peers.ROUTERS[2], 3.0, as_exact=False)]
    found = recorded(rows, "FlagGems, mm: ModuleNotFoundError")
    record.save(found, record.default_path(found, results))
    assert main(["report", str(page), "--results", str(results)]) == 0
    text = page.read_text()
    assert "| GEMMul8, int8, 8 moduli, fast mode | 2.00 | 2.00 | 2.00 | 2.00 / 2.00 |" in text
    assert "Not measured: FlagGems, mm: ModuleNotFoundError." in text and "Test GPU" in text
    assert "| HPC-Ops, gemm_bf16xfp32 | 3.00 | 2.00 |" in text and "16384 tokens" in text


def test_the_picture_has_those_that_are_as_exact(tmp_path: Path) -> None:
    rows = [row("auto", CUBE, 4.0), row("gemmul8", CUBE, 2.0), row("bf16x6", CUBE, 1.2)]
    rows += [row("tf32", CUBE, 8.0, as_exact=False), row("gemmul8", peers.PRODUCTS[0], 0.5)]
    del rows[0]["as_exact"]
    found = recorded(rows)
    record.save(found, record.default_path(found, tmp_path))
    slug = found["machine"]["slug"]
    marks = peers.beside(slug, tmp_path)
    assert [r["kernel"] for r in marks] == ["gemmul8", "bf16x6"]
    assert all(r["date"] == found["date"] for r in marks)
    assert peers.beside("another", tmp_path) == []


# --- libraries built from their sources ---


def test_shims_have_one_interface() -> None:
    names = {path.stem for path in peer_builds.OWN.glob("*.cu")}
    assert names == {name for name, source in peer_builds.SOURCES.items() if source.shim}
    for name in names:
        text = (peer_builds.OWN / f"{name}.cu").read_text()
        assert 'extern "C" int peer_variants()' in text and 'extern "C" int peer_mm(' in text


@pytest.mark.parametrize("name", peer_builds.SOURCES)
def test_a_library_needs_its_sources(name: str, tmp_path: Path) -> None:
    with pytest.raises(peer_builds.UnavailableError, match="--sources DIR"):
        peer_builds.library(name, None)
    with pytest.raises(peer_builds.UnavailableError, match="no sources of"):
        peer_builds.library(name, tmp_path)
    built = tmp_path / f"libpeer_{name}.so"
    built.touch()
    assert peer_builds.library(name, tmp_path) == built


def test_a_library_that_does_not_compile_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "GEMMul8").mkdir()
    compiler = tmp_path / "nvcc"
    compiler.write_text('#!/bin/sh\necho "x.cu(1): error: $*" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(peer_builds.UnavailableError, match=r"nvcc: x.cu\(1\): error") as failure:
        peer_builds.library("gemmul8", tmp_path)
    assert "-shared" in str(failure.value)


@pytest.mark.gpu
@pytest.mark.parametrize("statuses", [(0, 0, 0), (1, 0, 1)])
def test_the_fastest_variant_is_one_that_runs(statuses: tuple[int, ...]) -> None:
    assert statuses[peer_builds._fastest(len(statuses), lambda i: statuses[i])] == 0


def test_no_variant_may_run() -> None:
    with pytest.raises(RuntimeError, match="no variant"):
        peer_builds._fastest(2, lambda _: 1)
