"""Describes this installation and what it can run: ``python -m torch_sgemm.info [--json]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
from typing import Any

import torch

from torch_sgemm.choice.table import kernels
from torch_sgemm.measure.output import aligned
from torch_sgemm.torch_ops.library import INFO, PATH

SMI_FIELDS = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.max.mem", "power.limit")
ENVIRONMENT = {
    "TORCH_SGEMM": "1, or a kernel's or family's name: enable() at import torch",
    "TORCH_SGEMM_DEVICES": "where TORCH_SGEMM does: cuda (unless set), cpu, or cuda,cpu",
    "TORCH_SGEMM_BATCH_INVARIANT": "1: enable() is batch-invariant unless it says otherwise",
    "TORCH_SGEMM_WORKSPACE": "MiB that a split product may take for its planes; unless set 4096",
    "TORCH_SGEMM_TUNED": "a file of torch_sgemm.tune(): choices that were measured",
    "TORCH_SGEMM_CHECK_PACKED": "1: compare frozen matrices with their planes at every product",
    "TORCH_SGEMM_LOG": "1: log which kernel each new problem takes",
    "TORCH_SGEMM_EMULATOR_SHUFFLE": "seed: on the CPU, shuffle a block's threads between barriers",
    "TORCH_SGEMM_CUDA": "build: 0 CPU only, 1 CUDA or an error",
    "TORCH_SGEMM_TOOLKIT": "build: machine, pypi, or a CUDA version to fetch from PyPI",
    "TORCH_SGEMM_NAMESPACE": "build: the operators' namespace in torch.ops; unless set sgemm",
    "TORCH_CUDA_ARCH_LIST": "build: such as 9.0a or 8.0;9.0+PTX",
    "MAX_JOBS": "build: compilers at once",
}


def build_info() -> dict[str, Any]:
    """Returns the build's decisions, from the package's build_info.json."""
    return json.loads(INFO.read_text())


def gpus() -> list[dict[str, Any]]:
    """Returns the GPUs that torch sees, with clocks and driver if nvidia-smi reports them."""
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        found.append(
            {
                "index": index,
                "name": p.name,
                "arch": p.major * 10 + p.minor,
                "sms": p.multi_processor_count,
                "memory_gib": round(p.total_memory / 2**30, 1),
                **smi(str(getattr(p, "uuid", ""))),
            }
        )
    return found


def slug(name: str) -> str:
    """Returns ``h100-80gb-hbm3`` for ``NVIDIA H100 80GB HBM3``."""
    name = re.sub(r"^nvidia\s+", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def smi(uuid: str) -> dict[str, str]:
    """Driver and clocks of the GPU with this uuid (indices differ under CUDA_VISIBLE_DEVICES)."""
    program = shutil.which("nvidia-smi")
    if not program or not uuid:
        return {}
    command = [program, f"--query-gpu=uuid,{','.join(SMI_FIELDS)}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        values = [v.strip() for v in line.split(",")]
        if values[0].removeprefix("GPU-") == uuid.removeprefix("GPU-"):
            return dict(zip(SMI_FIELDS, values[1:], strict=True))
    return {}


def rows(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns every kernel of the table and where it runs here: "cpu", "cuda:0", ..."""
    return [
        {
            "name": k.name,
            "family": k.family,
            "min_arch": k.min_arch,
            "runs_on": (["cpu"] if "cpu" in k.devices else [])
            + [f"cuda:{d['index']}" for d in devices if k.runs_on(d["arch"])],
            "built_for": list(k.devices),
            "idea": k.idea,
        }
        for k in kernels()
    ]


def collect() -> dict[str, Any]:
    """Returns all that ``python -m torch_sgemm.info`` prints, as JSON-ready values."""
    devices = gpus()
    build = build_info()
    return {
        "torch_sgemm": build["version"],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "platform": platform.platform(),
        "library": str(PATH),
        "library_mib": round(PATH.stat().st_size / 2**20, 2),
        "build": build,
        "gpus": devices,
        "kernels": rows(devices),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
    }


def report(info: dict[str, Any]) -> str:
    """Formats the values of :func:`collect` as aligned text."""
    build = info["build"]
    toolkit = build["toolkit"]
    lines = [
        f"torch_sgemm   {info['torch_sgemm']}",
        f"library       {info['library']} ({info['library_mib']} MiB)",
        f"python        {info['python']}",
        f"torch         {info['torch']} (CUDA {info['torch_cuda'] or 'none'})",
        f"platform      {info['platform']}",
        "",
        f"built         {build['date']} against torch {build['torch']}, {build['jobs']} jobs",
        f"CUDA kernels  {'yes' if build['cuda'] else 'no'}: {build['reason']}",
        f"toolkit       {toolkit['kind']}"
        + (f", nvcc {toolkit['version']}" if build["cuda"] else ""),
        f"architectures {' '.join(build['architectures']) or 'none'}",
        f"compiler      {build['compiler']}",
        f"operators     torch.ops.{build['namespace']}",
        f"csrc          {build['csrc_digest'][:12]}",
        "",
    ]
    for d in info["gpus"]:
        lines.append(
            f"cuda:{d['index']}        {d['name']}, sm_{d['arch']}, {d['sms']} SMs, "
            f"{d['memory_gib']} GiB"
        )
        more = [f"{k} {v}" for k, v in d.items() if k in SMI_FIELDS]
        if more:
            lines.append(f"              {', '.join(more)}")
    if not info["gpus"]:
        lines.append("GPUs          none that torch can use: kernels run on the CPU")
    lines.append("")

    table = [("kernel", "family", "runs here on", "idea")]
    for k in info["kernels"]:
        where = " ".join(k["runs_on"]) or f"nothing here (needs sm_{k['min_arch']})"
        if "cuda" in k["built_for"] and not info["gpus"]:
            where += " (cuda)"
        table.append((k["name"], k["family"] or "-", where, k["idea"]))
    lines += aligned(table, words=range(4))
    if not info["gpus"]:
        lines.append("(cuda): also built for GPUs")
    lines.append("")
    width = max(map(len, ENVIRONMENT))
    for name, meaning in ENVIRONMENT.items():
        value = info["environment"][name]
        lines.append(f"{name:<{width}} {'unset' if value is None else value:<8} {meaning}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m torch_sgemm.info", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    info = collect()
    print(json.dumps(info, indent=2) if parser.parse_args().json else report(info))


if __name__ == "__main__":
    main()
