"""Records: what was measured, on what, with which sources; one JSON file a command and GPU."""

from __future__ import annotations

import hashlib
import json
import math
import os
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).resolve().parent / "results"


def csrc_digest(root: Path = ROOT) -> str:
    """What ``find csrc -type f | sort | xargs sha256sum | sha256sum`` prints in ``root``.

    In the C locale's order, so that every machine agrees.
    """
    files = sorted(str(p.relative_to(root)) for p in (root / "csrc").rglob("*") if p.is_file())
    lines = [f"{hashlib.sha256((root / f).read_bytes()).hexdigest()}  {f}\n" for f in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def new_record(command: str, machine: dict, timing: str, options: dict) -> dict:
    """A record without rows yet."""
    return {
        "command": command,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine,
        "csrc_digest": csrc_digest(),
        "timing": timing,
        "options": options,
        "rows": [],
    }


def default_path(record: dict, results: Path | None = None) -> Path:
    """results/COMMAND-GPU.json; a sustained run has a file of its own."""
    sustained = "-sustained" if record["options"].get("sustained") else ""
    name = f"{record['command']}{sustained}-{record['machine']['slug']}.json"
    return (results or RESULTS) / name


def save(record: dict, path: Path) -> Path:
    """Writes all or nothing: an interrupted run leaves the old record as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        text = json.dumps(_plain(record), indent=1, allow_nan=False)
        part.write_text(text + "\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def load(path: Path) -> dict:
    """Reads what ``save`` wrote."""
    return _from_plain(json.loads(path.read_text()))


def latest_gpu(command: str, results: Path | None = None, slug: str | None = None) -> dict | None:
    """The newest GPU record of ``command`` (of the GPU ``slug``, if given), with its "path"."""
    found = []
    for path in sorted((results or RESULTS).glob(f"{command}-*.json")):
        record = load(path)
        if record["command"] != command or record["machine"]["device"] != "cuda":
            continue
        if record["options"].get("sustained"):
            continue
        if slug is None or record["machine"]["slug"] == slug:
            found.append(record | {"path": str(path)})
    return max(found, key=lambda r: r["date"], default=None)


def provenance(record: dict) -> str:
    """One line: when, on what, with which versions and sources."""
    m = record["machine"]
    parts = [record["date"], m["name"]]
    if m["device"] == "cuda":
        parts.append(f"driver {m['driver']}" if m.get("driver") else "driver unknown")
        parts.append(_clocks(record))
    else:
        parts.append(f"{m['threads']} threads")
    cuda = f" (CUDA {m['torch_cuda']})" if m["torch_cuda"] else ""
    parts += [f"PyTorch {m['torch']}{cuda}", f"torch_sgemm {m['torch_sgemm']}"]
    parts.append(f"csrc {record['csrc_digest'][:12]}")
    return ", ".join(parts)


def _clocks(record: dict) -> str:
    m, busy = record["machine"], [r["sm_mhz"] for r in record["rows"] if r.get("sm_mhz")]
    if not busy:
        return "clocks unknown"
    low, high = min(busy), max(busy)
    span = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
    limit = f" of {m['max_sm_mhz']:.0f}" if m.get("max_sm_mhz") else ""
    power = f", limit {m['power_limit_w']:.0f} W" if m.get("power_limit_w") else ""
    return f"SM clock {span}{limit} MHz{power}"


def _plain(value: object) -> object:
    """JSON has no NaN or infinity: they become the strings "nan", "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _from_plain(value: object) -> object:
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, dict):
        return {key: _from_plain(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_from_plain(v) for v in value]
    return value
