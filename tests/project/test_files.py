"""Files that commands and functions write: their mode, links, and what interrupts them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import record
from torch_sgemm.choice import tuned
from torch_sgemm.measure import output

WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: output.write(path, "[]\n"),
    "tuned": lambda path: output.write(path, tuned.text([])),
    "record": lambda path: record.save({"rows": []}, path),
}
each_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@pytest.fixture(params=[0o022, 0o027, 0o002], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@each_writer
def test_a_new_file_has_the_mode_of_any_new_file(write: Callable, umask: int, tmp_path) -> None:
    path = tmp_path / "new.json"
    write(path)
    assert mode(path) == 0o666 & ~umask
    assert [x.name for x in tmp_path.iterdir()] == ["new.json"]


@each_writer
@pytest.mark.parametrize("kept", [0o600, 0o640, 0o666, 0o755], ids=oct)
def test_a_file_keeps_its_mode(write: Callable, kept: int, umask: int, tmp_path) -> None:
    path = tmp_path / "old.json"
    path.write_text("old")
    path.chmod(kept)
    write(path)
    assert mode(path) == kept and path.read_text() != "old"


@each_writer
@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_keeps_its_target(write: Callable, exists: bool, tmp_path) -> None:
    target, link, second = (tmp_path / name for name in ("target", "link", "second"))
    if exists:
        target.write_text("old")
    link.symlink_to(target.name)
    second.symlink_to(link)
    write(second)
    assert second.is_symlink() and link.is_symlink() and not target.is_symlink()
    assert target.read_text() == second.read_text() != "old"


@each_writer
def test_a_failure_leaves_the_old_file(
    write: Callable, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.json"
    path.write_text("old")

    def fail(*_) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        write(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_what_is_no_regular_file_is_written_to() -> None:
    code = "from torch_sgemm.measure import output as f; f.write(f.Path('/dev/stdout'), 'here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "here"


def test_in_a_folder_that_takes_no_new_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.json"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda path, how: False)
    output.write(path, "new")
    assert path.read_text() == "new"
