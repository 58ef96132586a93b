"""Records: what was measured, on what, with which sources; one JSON file a command and GPU."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))

from build_digest import csrc_digest  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"


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
    from torch_sgemm import files

    files.write(path, json.dumps(_plain(record), indent=1, allow_nan=False) + "\n")
    return path


def load(path: Path) -> dict:
    """Reads what ``save`` wrote."""
    return _from_plain(json.loads(path.read_text()))


def output_path(record: dict, asked: Path | None) -> Path:
    """Where the record goes: a .json file that was asked for, or its usual name in a folder."""
    if asked is None:
        return default_path(record)
    if is_folder(asked):
        return default_path(record, asked)
    return asked


def is_folder(path: Path) -> bool:
    """Whether ``path`` names a folder for records, which need not be there: not a .json file."""
    return path.is_dir() or path.suffix != ".json"


def latest_gpu(command: str, results: Path | None = None, slug: str | None = None) -> dict | None:
    """The newest GPU record of ``command`` (of the GPU ``slug``, if given), with its "path"."""
    return max(all_of(command, results, slug), key=lambda r: r["date"], default=None)


def all_of(command: str, results: Path | None = None, slug: str | None = None) -> list[dict]:
    """All GPU records of ``command`` (of the GPU ``slug``, if given), the oldest first."""
    found = [r for r in _of_gpus(command, results) if slug in (None, r["machine"]["slug"])]
    return sorted(found, key=lambda r: r["date"])


def gpus(commands: Iterable[str], results: Path | None = None) -> list[str]:
    """The slugs of all GPUs that there are records of."""
    return sorted({r["machine"]["slug"] for name in commands for r in _of_gpus(name, results)})


def _of_gpus(command: str, results: Path | None) -> Iterator[dict]:
    for path in sorted((results or RESULTS).glob(f"{command}-*.json")):
        record = load(path)
        if record["command"] != command or record["machine"]["device"] != "cuda":
            continue
        if not record["options"].get("sustained"):
            yield record | {"path": str(path)}


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
