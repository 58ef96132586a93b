"""Attention of DTensors: split by batch or heads, in two processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.process import python

pytest.importorskip("torch.distributed.tensor")


@pytest.mark.slow
def test_batches_and_heads(tmp_path: Path) -> None:
    def run(rank: int):
        return python("-m", "support.attention_shards", str(rank), "2", str(tmp_path / "store"))

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(run, range(2)):
            assert done.returncode == 0 and done.stdout.strip() == "right", done.stderr[-3000:]
