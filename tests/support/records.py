"""Invented records of benchmarks."""

from __future__ import annotations


def gpu_record(command: str, rows: list[dict], /, **changes) -> dict:
    """Makes a record of an invented GPU."""
    about = {"device": "cuda", "name": "Test GPU", "slug": "test-gpu", "driver": "1.2"}
    about |= {"torch": "2.10", "torch_cuda": "13.0", "torch_sgemm": "0.1"}
    about |= {"max_sm_mhz": 1980.0, "power_limit_w": 700.0}
    found = {"command": command, "date": "2024-01-02 03:04 UTC", "machine": about}
    found |= {"csrc_digest": "a" * 64, "timing": "graph replays", "options": {}, "rows": rows}
    return found | changes
