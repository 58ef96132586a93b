"""Records: what was measured, on what, with which sources; one file a command and GPU.

A folder of results has three folders: ``tables`` (records that pages are made from), ``plots``
(their charts) and ``plans`` (the data that cost models are fitted to).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tools"))

from build_digest import csrc_digest  # noqa: E402

from benchmarks import storage  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
TABLES, PLOTS, PLANS = "tables", "plots", "plans"  # folders of results
JSON, LINES = ".json", ".jsonl.gz"


def new_record(command: str, machine: dict, timing: str, options: dict) -> dict:
    """Returns a record without rows."""
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
    """Returns FOLDER/COMMAND-GPU and a suffix; a sustained run has a file of its own."""
    sustained = "-sustained" if record["options"].get("sustained") else ""
    name = f"{record['command']}{sustained}-{record['machine']['slug']}"
    folder, suffix = _place(record["command"])
    return (results or RESULTS) / folder / (name + suffix)


def _place(command: str) -> tuple[str, str]:
    """Returns the folder and the suffix of a command's records."""
    return (PLANS, LINES) if command == "plans" else (TABLES, JSON)


def chart_path(path: Path) -> Path:
    """Returns a chart's path: in the folder of plots, or beside a record from elsewhere."""
    folder = path.parent.with_name(PLOTS) if path.parent.name == TABLES else path.parent
    return folder / (path.stem + ".png")


def save(record: dict, path: Path) -> Path:
    """Writes all or nothing: an interrupted run leaves the old record intact."""
    data = storage.as_lines(record) if _is_lines(path) else storage.as_json(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    from torch_sgemm.measure import output

    output.write(path, data)
    return path


def load(path: Path) -> dict:
    """Reads a file that ``save`` wrote."""
    if _is_lines(path):
        return storage.from_lines(path.read_bytes())
    return storage.from_json(path.read_text(encoding="utf-8"))


def _is_lines(path: Path) -> bool:
    return path.name.endswith(LINES)


def output_path(record: dict, asked: Path | None) -> Path:
    """Returns the record's path: the file asked for, or its usual place in a folder."""
    if asked is None:
        return default_path(record)
    if is_folder(asked):
        return default_path(record, asked)
    return asked


def is_folder(path: Path) -> bool:
    """True if ``path`` lacks a record's suffix and so names a folder, which need not exist."""
    return path.is_dir() or not path.name.endswith((JSON, LINES))


def latest_gpu(
    command: str,
    results: Path | None = None,
    slug: str | None = None,
    suits: Callable[[dict], bool] | None = None,
) -> dict | None:
    """Returns the newest GPU record of ``command`` (of GPU ``slug``, if given), with its "path".

    ``suits`` restricts the choice to records for which it returns True.
    """
    return max(filter(suits, all_of(command, results, slug)), key=lambda r: r["date"], default=None)


def all_of(command: str, results: Path | None = None, slug: str | None = None) -> list[dict]:
    """Returns all GPU records of ``command`` (of the GPU ``slug``, if given), oldest first."""
    found = [r for r in _of_gpus(command, results) if slug in (None, r["machine"]["slug"])]
    return sorted(found, key=lambda r: r["date"])


def gpus(commands: Iterable[str], results: Path | None = None) -> list[str]:
    """Returns the slugs of all GPUs that have records."""
    return sorted({r["machine"]["slug"] for name in commands for r in _of_gpus(name, results)})


def _of_gpus(command: str, results: Path | None) -> Iterator[dict]:
    folder, suffix = _place(command)
    for path in sorted((results or RESULTS).glob(f"{folder}/{command}-*{suffix}")):
        record = load(path)
        if record["command"] != command or record["machine"]["device"] != "cuda":
            continue
        if not record["options"].get("sustained"):
            yield record | {"path": str(path)}


def provenance(record: dict) -> str:
    """Returns one line: when, on what, with which versions and sources."""
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
