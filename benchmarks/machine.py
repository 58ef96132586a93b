"""The machine beside the figures: GPU, clocks, power, temperature, throttling, versions."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import pty
import re
import shutil
import statistics
import subprocess
import threading
from dataclasses import asdict
from functools import cache
from pathlib import Path

import torch

import torch_sgemm
from torch_sgemm.info import slug

PERIOD_MS = 100
FIELDS = {  # names in nvidia-smi, those of older drivers last
    "sm_mhz": ("clocks.sm",),
    "memory_mhz": ("clocks.mem",),
    "power_w": ("power.draw.instant", "power.draw"),
    "temperature_c": ("temperature.gpu",),
    "throttle": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
}
LIMITS = {
    "max_sm_mhz": "clocks.max.sm",
    "max_memory_mhz": "clocks.max.mem",
    "power_limit_w": "power.limit",
}
REASONS = {  # bits of the throttle mask
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


def _query(names: list[str], device: torch.device) -> list[str] | None:
    """Returns nvidia-smi's answers; None without nvidia-smi or if it knows no such field."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = [*_smi(names), "-i", _smi_id(device)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        return None
    return [value.strip() for value in done.stdout.strip().split(",")]


def _smi(names: list[str]) -> list[str]:
    return ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]


def _smi_id(device: torch.device) -> str:
    # By UUID: CUDA_VISIBLE_DEVICES renumbers torch's devices but not nvidia-smi's.
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # "[N/A]"
        return None


@cache
def _fields(device: torch.device) -> dict[str, str]:
    """Returns this driver's names of FIELDS, without those that it doesn't know."""
    known = {}
    for key, names in FIELDS.items():
        name = next((name for name in names if _query([name], device) is not None), None)
        if name is not None:
            known[key] = name
    return known


def reasons(mask: int) -> list[str]:
    """Returns the reasons in a throttle mask; a GPU that is merely idle has none."""
    return [text for bit, text in REASONS.items() if mask & bit]


def state(device: torch.device) -> dict:
    """Returns clocks, power, temperature, throttle reasons; empty without CUDA or nvidia-smi."""
    if device.type != "cuda":
        return {}
    fields = _fields(device)
    values = _query(list(fields.values()), device) if fields else None
    return {} if values is None else summarise(list(fields), [values])


def describe(device: torch.device) -> dict:
    """Returns properties that don't change during a run."""
    about: dict = {
        "device": device.type,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "torch_sgemm": torch_sgemm.__version__,
        "threads": torch.get_num_threads(),
        "cpu": _cpu_name(),
    }
    if device.type != "cuda":
        return about | {"name": _cpu_name(), "slug": "cpu"}
    p = torch.cuda.get_device_properties(device)
    about |= {"name": p.name, "slug": slug(p.name), "arch": p.major * 10 + p.minor}
    about |= {"sms": p.multi_processor_count, "l2_mb": round(p.L2_cache_size / 2**20, 1)}
    about["predicted_for"] = asdict(torch_sgemm.Device.of(device))
    limits = _query(list(LIMITS.values()), device)
    driver = _query(["driver_version"], device)
    about["driver"] = driver[0] if driver else None
    about |= (
        dict.fromkeys(LIMITS)
        if limits is None
        else {key: _number(text) for key, text in zip(LIMITS, limits, strict=True)}
    )
    return about


def predicted_for(machine: dict) -> torch_sgemm.Device:
    """Returns a record's machine as the cost models saw it; an H200 for older records."""
    return torch_sgemm.Device(**machine.get("predicted_for", {}))


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return f"{found.group(1) if found else platform.machine()}, {os.cpu_count()} cores"


class Sampler:
    """Clocks and power every 0.1 s while it is open, from one nvidia-smi process.

    Off CUDA or without nvidia-smi, the sampler collects nothing and every summary is empty.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._keys: list[str] = []
        self._samples: list[list[str]] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sampler:
        fields = _fields(self._device) if self._device.type == "cuda" else {}
        self._keys = list(fields)
        if fields:
            names = list(fields.values())
            command = [*_smi(names), "-i", _smi_id(self._device), "-lms", str(PERIOD_MS)]
            # A terminal, not a pipe: a pipe would hold the lines back until a buffer is full.
            terminal, end = pty.openpty()
            self._process = subprocess.Popen(command, stdout=end, stdin=end)
            os.close(end)
            threading.Thread(target=self._read, args=(terminal,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _read(self, terminal: int) -> None:
        # A terminal whose other end is closed raises an input/output error instead of ending.
        with open(terminal, encoding="ascii") as lines, contextlib.suppress(OSError):
            for line in lines:
                self._samples.append([value.strip() for value in line.split(",")])

    def mark(self) -> int:
        """Returns a point in time for ``since``."""
        return len(self._samples)

    def since(self, mark: int) -> dict:
        """Returns median clock, highest power and temperature, throttle reasons since ``mark``."""
        return summarise(self._keys, self._samples[mark:])


def summarise(keys: list[str], samples: list[list[str]]) -> dict:
    """Sums up nvidia-smi's lines: median clocks, highest power and temperature, throttle reasons.

    ``keys`` are the FIELDS in a line, in order. The result is empty if there is no whole line.
    """
    samples = [sample for sample in samples if len(sample) == len(keys)]
    if not samples:
        return {}
    result: dict = {}
    for key, column in zip(keys, zip(*samples, strict=True), strict=True):
        if key == "throttle":
            masks = [int(text, 16) for text in column if text.startswith("0x")]
            result[key] = reasons(functools.reduce(int.__or__, masks, 0)) if masks else None
            continue
        values = [value for value in map(_number, column) if value is not None]
        combine = statistics.median if key.endswith("_mhz") else max
        result[key] = combine(values) if values else None
    return result
