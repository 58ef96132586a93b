"""Bar charts from records."""

from __future__ import annotations

import io
import math
import re
import textwrap
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from PIL import Image

from benchmarks import peers, tables
from benchmarks.record import provenance
from benchmarks.sides import INFORMATION

OURS, THEIRS, WRONG = "#3b6ea5", "#b04a3a", "#bbbbbb"
FAMILIES = {"split": "#1f77b4", "ieee": "#e07b00", "ladder": "#2ca02c", "torch": THEIRS}
MARKERS = "os^vDP<>Xp*h"
RING = {"marker": "o", "markersize": 7, "fillstyle": "none", "color": "black", "zorder": 3}


def ladder(record: dict, path: Path) -> Path:
    """Draws a panel per size: TFLOP/s of rows as bars, torch.mm as a line, percentages beside."""
    sizes = sorted({r["size"] for r in record["rows"]})
    names = list(dict.fromkeys(r["kernel"] for r in record["rows"]))
    width, height = 3.6 + 2.6 * len(sizes), 1.6 + 0.22 * len(names)
    figure, axes = plt.subplots(
        1, len(sizes), figsize=(width, height), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, size in zip(axes[0], sizes, strict=True):
        rows = {r["kernel"]: r for r in record["rows"] if r["size"] == size and "failed" not in r}
        axis.set_title(f"{size}³", fontsize=9)
        _panel(axis, [rows.get(name) for name in names], *tables.speed_unit(record))
    axes[0][0].set_yticks(range(len(names)), names, fontsize=7)
    axes[0][0].invert_yaxis()
    _title(figure, f"{provenance(record)}; {record['timing']}")
    return _save(figure, path)


def _panel(axis: plt.Axes, rows: list[dict | None], unit: str, scale: float) -> None:
    values = [scale * r["kernel_tflops"] if r else 0.0 for r in rows]
    colors = [OURS if r and r["correct"] else WRONG for r in rows]
    axis.barh(range(len(rows)), values, color=colors, height=0.75)
    beside = sorted(scale * r["torch_tflops"] for r in rows if r)
    if beside:
        axis.axvline(beside[len(beside) // 2], color=THEIRS, linewidth=1, label="torch.mm")
        axis.legend(fontsize=6, loc="lower right")
    for y, r in enumerate(rows):
        if r:
            axis.text(values[y], y, f" {r['percent_of_torch']:.0f} %", va="center", fontsize=6)
    axis.set_xlim(0, 1.18 * max([*values, *beside, 1e-9]))
    axis.set_xlabel(unit, fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)


def suite(record: dict, path: Path) -> Path:
    """Draws every case's ratio to torch, a marker per kernel, on a logarithmic axis."""
    cases = list(dict.fromkeys(r["label"] for r in record["rows"]))
    figure, axis = plt.subplots(figsize=(8, 1.6 + 0.17 * len(cases)), layout="constrained")
    kernels = list(dict.fromkeys(r["kernel"] for r in record["rows"]))
    styles = _styles([kernel for kernel in kernels if kernel != "auto"])
    for kernel, marker in zip(kernels, cycle("os^vD"), strict=False):
        rows = [r for r in record["rows"] if r["kernel"] == kernel and "failed" not in r]
        ratios = [r["percent_of_torch"] / 100 for r in rows]
        places = [cases.index(r["label"]) for r in rows]
        # auto often takes a family's row: a ring goes around that marker.
        style = RING if kernel == "auto" else styles[kernel] | {"marker": marker}
        axis.plot(ratios, places, linestyle="", label=kernel, **style)
    axis.axvline(1, color=THEIRS, linewidth=1)
    axis.set_xscale("log")
    _ticks(axis, [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32])
    axis.set_yticks(range(len(cases)), cases, fontsize=5)
    axis.set_ylim(len(cases) - 0.5, -0.5)
    axis.set_xlabel("speed relative to torch", fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize=6)
    _title(figure, f"{provenance(record)}; {record['timing']}")
    return _save(figure, path)


def users(record: dict, path: Path) -> Path:
    """Draws the same for ``users``, with other precisions and operands for information."""
    rows = list(record["rows"])
    for side, (_, name) in INFORMATION.items():
        for r in record["rows"]:
            if "failed" not in r and f"{side}_us" in r:
                percent = 100 * r["torch_us"] / r[f"{side}_us"]
                rows.append({"label": r["label"], "kernel": name, "percent_of_torch": percent})
    return suite(record | {"rows": rows}, path)


def accuracy(record: dict, path: Path) -> Path:
    """Draws the largest error of every distribution at the largest k up to 8192, by kernel."""
    depths = {r["k"] for r in record["rows"]}
    k = max((k for k in depths if k <= 8192), default=max(depths))
    rows = [r for r in record["rows"] if r["k"] == k]
    names = list(dict.fromkeys(r["distribution"] for r in rows))
    sides = {"torch.mm": {r["distribution"]: r["torch_error_max"] for r in rows}}
    for r in rows:
        sides.setdefault(r["kernel"], {})[r["distribution"]] = r.get("error_max", math.nan)
    figure, axis = plt.subplots(figsize=(9, 1.6 + 0.26 * len(names)), layout="constrained")
    styles = _styles(list(sides)[1:])
    for i, (side, errors) in enumerate(sides.items()):
        style = styles.get(side, RING | {"markeredgewidth": 1.2})
        color = style["color"]
        # Side by side within a line, torch.mm in the middle: many errors are nearly the same.
        shift = 0.8 * ((i - 0.5) / max(1, len(sides) - 1) - 0.5) if i else 0.0
        places = [names.index(name) + shift for name in errors]
        axis.plot(errors.values(), places, linestyle="", label=side, **style)
        for y, error in zip(places, errors.values(), strict=True):
            if not math.isfinite(error):
                at = axis.get_yaxis_transform()
                text = {"color": color, "fontsize": 5, "ha": "right", "va": "center"}
                axis.text(0.99, y, f"{side}: not finite", transform=at, **text)
    axis.set_xscale("symlog", linthresh=1, linscale=0.4)
    _ticks(axis, [0, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000])
    axis.set_xlim(left=-0.2)
    axis.set_yticks(range(len(names)), names, fontsize=6)
    axis.set_ylim(len(names) - 0.5, -0.5)
    units = "in units of 2⁻²⁴·(|A||B|); linear below 1"
    axis.set_xlabel(f"largest error at k = {k}, {units}", fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.grid(axis="x", alpha=0.3)
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    _title(figure, f"{provenance(record)}; {record['timing']}")
    return _save(figure, path)


def _styles(kernels: list[str]) -> dict[str, dict]:
    """Returns a colour per family and, within it, a marker per row."""
    found: dict[str, dict] = {}
    for kernel in kernels:
        family = re.split("[_ ]", kernel)[0]
        color = FAMILIES.get(family, WRONG)
        seen = sum(style["color"] == color for style in found.values())
        marker = MARKERS[seen % len(MARKERS)]
        found[kernel] = {"marker": marker, "markersize": 4, "color": color}
    return found


def models(record: dict, path: Path) -> Path:
    """Draws milliseconds per step of every model: torch, and under enable(); bars to p10, p90."""
    rows = [r for r in record["rows"] if "failed" not in r]
    figure, axis = plt.subplots(figsize=(8, 1.4 + 0.6 * len(rows)), layout="constrained")
    for i, (side, name, color) in enumerate(
        (("torch_step", "torch", THEIRS), ("step", "torch_sgemm.enable()", OURS))
    ):
        ms, low, high = ([r[f"{side}_us{q}"] / 1e3 for r in rows] for q in ("", "_p10", "_p90"))
        spread = [
            [max(0.0, t - p) for t, p in zip(ms, low, strict=True)],
            [max(0.0, p - t) for t, p in zip(ms, high, strict=True)],
        ]
        places = [y + 0.38 * (i - 0.5) for y in range(len(rows))]
        axis.barh(places, ms, 0.36, xerr=spread, color=color, error_kw={"lw": 0.8}, label=name)
    for y, r in enumerate(rows):
        at = max(r["step_us"], r["step_us_p90"]) / 1e3, y + 0.19
        axis.text(*at, f"  {r['percent_of_torch'] / 100:.2f} x", va="center", fontsize=7)
    axis.set_yticks(range(len(rows)), [r["label"] for r in rows], fontsize=7)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlabel("ms a step", fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=6)
    _title(figure, f"{provenance(record)}; {record['timing']}")
    return _save(figure, path)


def training(record: dict, path: Path) -> Path:
    """Draws two panels per model: losses by step, and differences from float64's."""
    names = list(dict.fromkeys(r["model"] for r in record["rows"]))
    figure, axes = plt.subplots(
        len(names), 2, figsize=(9.5, 0.6 + 2.6 * len(names)), squeeze=False, layout="constrained"
    )
    for (left, right), name in zip(axes, names, strict=True):
        for r in (r for r in record["rows"] if r["model"] == name):
            style = TRAINING[r["kernel"]]
            if r["kernel"] in ("torch", "torch_sgemm"):
                left.plot(range(1, len(r["losses"]) + 1), r["losses"], **style)
            if "differences" in r:  # a difference of 0 has no place on the axis
                apart = [x or math.nan for x in r["differences"]]
                right.plot(range(1, len(apart) + 1), apart, **style)
        left.set_title(r["label"], fontsize=8)
        left.set_ylabel("loss", fontsize=7)
        right.set_ylabel("difference from float64's loss", fontsize=7)
        right.set_yscale("log")
        for axis in (left, right):
            axis.set_xlabel("step", fontsize=7)
            axis.tick_params(labelsize=7)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=6)
    _title(figure, f"{provenance(record)}; {record['timing']}")
    return _save(figure, path)


TRAINING = {
    "float64": {"color": "black", "lw": 3, "alpha": 0.3, "label": "torch in float64"},
    "torch": {"color": THEIRS, "lw": 0.8, "label": "torch"},
    "order": {"color": FAMILIES["ieee"], "lw": 0.8, "label": "torch, batches reversed"},
    "torch_sgemm": {"color": OURS, "lw": 0.8, "label": "torch_sgemm.enable()"},
}


def attention(record: dict, path: Path) -> Path:
    """Draws a bar per case: speed relative to PyTorch's kernel."""
    rows = [r for r in record["rows"] if r["kernel"] == "split"]
    return speeds(record | {"rows": rows}, path, "PyTorch's memory-efficient kernel")


def speeds(record: dict, path: Path, other: str = "torch.matmul") -> Path:
    """Draws a bar per row: speed relative to ``other``."""
    rows = [r for r in record["rows"] if "failed" not in r]
    figure, axis = plt.subplots(figsize=(7, 0.8 + 0.17 * len(rows)), layout="constrained")
    places = list(range(len(rows)))[::-1]
    axis.barh(places, [r["percent_of_torch"] / 100 for r in rows], color=OURS, height=0.7)
    axis.axvline(1, color=THEIRS, linewidth=1)
    axis.set_yticks(places, [r["label"] for r in rows], fontsize=6)
    axis.set_xlabel(f"speed relative to {other}", fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.margins(y=0.01)
    axis.spines[["top", "right"]].set_visible(False)
    _title(figure, f"{provenance(record)}; {record['timing']}")
    return _save(figure, path)


def squares(record: dict, path: Path) -> Path:
    """Draws TFLOP/s over size: torch.mm in float32 and in TF32, ours, and peers at one size.

    The legend has each one's largest error. A record without TF32 has no line for it.
    """
    rows = [r for r in record["rows"] if r["ops"] == "NN" and not r["sustained"]]
    rows = sorted((r for r in rows if "failed" not in r), key=lambda r: r["size"])
    unit, scale = tables.speed_unit(record)
    figure, axis = plt.subplots(figsize=(9.5, 4), layout="constrained")
    for side, prefix, name, style in SQUARES:
        line = [r for r in rows if f"{side}_tflops" in r]
        if not line:
            continue
        error = max(r[f"{prefix}error_max"] for r in line)
        label = f"{name}\nerror up to {tables.digits(error)}"
        speed = [scale * r[f"{side}_tflops"] for r in line]
        axis.plot([r["size"] for r in line], speed, label=label, markersize=5, **style)
    _peers(axis, peers.beside(record["machine"]["slug"], path.parent.parent))
    sizes = sorted({r["size"] for r in rows})
    axis.set_xscale("log", base=2)
    _ticks(axis, sizes)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("m = n = k", fontsize=7)
    axis.set_ylabel(unit, fontsize=7)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.3)
    units = "errors against float64, in units of 2⁻²⁴·(|A||B|)"
    place = {"loc": "upper left", "bbox_to_anchor": (1, 1), "frameon": False}
    axis.legend(fontsize=7, title=units, title_fontsize=7, alignment="left", **place)
    _title(figure, f"{provenance(record)}; {record['timing'].split(';')[0]}")
    return _save(figure, path)


SQUARES = (  # a side's figures, its errors' prefix, name and style
    ("torch", "torch_", "torch.mm (cuBLAS), float32", {"color": THEIRS, "marker": "o"}),
    ("tf32", "tf32_", "torch.mm (cuBLAS), TF32", {"color": WRONG, "marker": "s", "ls": "--"}),
    ("kernel", "", "torch_sgemm, float32", {"color": OURS, "marker": "D"}),
)


def _peers(axis: plt.Axes, found: list[dict]) -> None:
    """Marks other libraries' products at float32 accuracy, measured on the same GPU."""
    for r, marker in zip(found, cycle("^v<>ph"), strict=False):
        label = f"{r['way']}\nerror {tables.digits(r['error_max'])}, run of {r['date'][:10]}"
        style = {"marker": marker, "ls": "", "color": "black", "fillstyle": "none"}
        axis.plot([r["m"]], [r["kernel_tflops"]], label=label, markersize=5, **style)


def packed(record: dict, path: Path) -> Path:
    """Draws a panel per weight: speed relative to torch.mm by rows of x, with planes or without."""
    rows = [r for r in record["rows"] if "failed" not in r]
    weights = list(dict.fromkeys(r["weight"] for r in rows))
    counts = sorted({r["m"] for r in rows})
    figure, axes = plt.subplots(
        1,
        max(1, len(weights)),
        figsize=(1.6 + 2.6 * len(weights), 3),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, weight in zip(axes[0], weights, strict=False):
        for kernel, label, style in (("auto", "unpacked", "o--"), ("packed", "packed", "s-")):
            line = [r for r in rows if r["weight"] == weight and r["kernel"] == kernel]
            ratios = [r["percent_of_torch"] / 100 for r in line]
            axis.plot([r["m"] for r in line], ratios, style, color=OURS, markersize=4, label=label)
        axis.axhline(1, color=THEIRS, linewidth=1)
        axis.set_xscale("log")
        axis.set_xticks(counts, counts)
        axis.minorticks_off()
        axis.set_title(f"weight {weight}", fontsize=9)
        axis.set_xlabel("rows of x", fontsize=7)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylim(0, 1.05 * max([1, *(r["percent_of_torch"] / 100 for r in rows)]))
    axes[0][0].set_ylabel("speed relative to torch.mm", fontsize=7)
    axes[0][0].legend(fontsize=6)
    _title(figure, f"{provenance(record)}; {record['timing']}")
    return _save(figure, path)


def _ticks(axis: plt.Axes, at: list[float]) -> None:
    """Puts plain-number ticks at ``at`` only."""
    axis.xaxis.set_major_locator(FixedLocator(at))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


def _title(figure: plt.Figure, text: str) -> None:
    figure.suptitle(textwrap.fill(text, int(18 * figure.get_figwidth())), fontsize=7)


def _save(figure: plt.Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130)
    plt.close(figure)
    # A palette takes a third of the bytes, and a chart has few colors.
    Image.open(drawn).convert("RGB").quantize(256).save(path, "PNG", optimize=True)
    return path
