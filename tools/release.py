"""Makes what a release consists of: the sdist, manylinux wheels, and an index page for them.

    python tools/release.py                     # all of it into dist/, and the wheel is checked
    python tools/release.py sdist DIRECTORY     # the parts, as the workflow runs them
    python tools/release.py repair WHEEL DIRECTORY
    python tools/release.py index DIRECTORY --platform x86_64 aarch64   # fails if one has no wheel
    python tools/release.py version --tag v0.1.0   # fails unless that is the version

The wheel is built from the sdist, so that a file which the sdist lacks is missed here. auditwheel
names the oldest glibc that the wheel runs on, at most that of the build machine. So the workflow
builds in a manylinux image, on a machine of each platform. torch's own libraries stay outside of
the wheel.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 60 * 10**6  # of a wheel, at most
TORCHS = ("libtorch*.so*", "libc10*.so*")  # loaded by torch before this package
FILES = ("*.whl", "*.tar.gz")
PROJECT = "torch-sgemm"  # as an index spells it


def version(root: Path = ROOT) -> str:
    """Returns ``__version__`` of torch_sgemm/__init__.py, the one place that has it."""
    for node in ast.parse((root / "torch_sgemm" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__":
            return ast.literal_eval(node.value)
    raise SystemExit("release: torch_sgemm/__init__.py has no __version__")


def release_date(changelog: str, of: str) -> str:
    """Returns the date, or another word, that CHANGELOG.md has beside a version.

    Raises:
        SystemExit: CHANGELOG.md has no section of that version.
    """
    found = re.search(rf"^## \[{re.escape(of)}\] - (\S+)$", changelog, re.M)
    if not found:
        raise SystemExit(f"release: CHANGELOG.md has no section '## [{of}] - DATE'")
    return found[1]


def check_size(wheel: Path) -> None:
    """Raises SystemExit for a wheel above 60 MB."""
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        most = MOST_BYTES // 10**6
        raise SystemExit(f"release: {wheel.name} has {size / 1e6:.1f} MB; accepted: up to {most}")


def run(*command: str | Path, **more: object) -> None:
    """Runs a step; raises SystemExit with its command if it fails."""
    line = [str(part) for part in command]
    if subprocess.run(line, **more).returncode:
        raise SystemExit(f"release: this step failed, its message is above:\n    {' '.join(line)}")


def build_sdist(directory: Path) -> Path:
    """Makes the sdist in ``directory``, by the project's own build backend."""
    directory.mkdir(parents=True, exist_ok=True)
    code = "import sys, build_backend; build_backend.build_sdist(sys.argv[1])"
    path = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    run(sys.executable, "-c", code, directory.resolve(), cwd=ROOT, env=path,
        stdout=subprocess.DEVNULL)  # fmt: skip
    return directory / f"torch_sgemm-{version()}.tar.gz"


def build_wheel(source: Path, directory: Path) -> Path:
    """Builds an sdist's wheel with this environment's torch; its tag is this machine's."""
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
        "-w", directory, source)  # fmt: skip
    return next(directory.glob("*.whl"))


def repair(wheel: Path, directory: Path) -> Path:
    """Gives ``wheel`` the manylinux tag that its symbols allow, in ``directory``.

    Raises:
        SystemExit: auditwheel refuses it, or it is larger than 60 MB.
    """
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("auditwheel", path=here)
    if not program:
        raise SystemExit("release: no auditwheel; python -m pip install '.[release]' has it")
    excluded = [word for pattern in TORCHS for word in ("--exclude", pattern)]
    with tempfile.TemporaryDirectory(prefix="release_") as name:
        run(program, "repair", *excluded, "-w", name, wheel, env={**os.environ, "PATH": here})
        (fixed,) = Path(name).glob("*.whl")
        check_size(fixed)
        directory.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(fixed, directory / fixed.name))


def index_page(files: list[Path], prefix: str) -> str:
    """Returns a page of an index (PEP 503): links below ``prefix`` with the files' digests."""
    links = []
    for path in sorted(files):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        name = html.escape(path.name)
        links.append(
            f'<a href="{prefix}{name}#sha256={digest}" data-requires-python="&gt;=3.10">{name}</a>'
        )
    body = "<br>\n".join(links)
    return (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>Links for torch_sgemm</title>'
        f"</head><body>\n<h1>Links for torch_sgemm</h1>\n{body}\n</body></html>\n"
    )


def write_index(directory: Path, platforms: Sequence[str] = ()) -> Path:
    """Makes ``directory`` a static index: pip's ``--index-url`` takes its simple/.

    Raises:
        SystemExit: it has no wheel, none of one of ``platforms``, or files of several versions.
    """
    files = [path for pattern in FILES for path in directory.glob(pattern)]
    wheels = [path.stem for path in files if path.suffix == ".whl"]
    if not wheels:
        raise SystemExit(f"release: no wheel in {directory}")
    for platform in platforms:
        if not any(name.endswith(f"_{platform}") for name in wheels):
            raise SystemExit(f"release: no wheel for {platform} in {directory}, only {wheels}")
    versions = sorted({path.name.removesuffix(".tar.gz").split("-")[1] for path in files})
    if len(versions) > 1:
        raise SystemExit(f"release: files of versions {', '.join(versions)} in {directory}")
    page = directory / "simple" / PROJECT / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(index_page(files, "../../"))
    (page.parent.parent / "index.html").write_text(
        f'<!DOCTYPE html>\n<html><body><a href="{PROJECT}/">{PROJECT}</a></body></html>\n'
    )
    return page


def release(directory: Path, check: list[str]) -> None:
    """Makes all parts in ``directory``; ``check``: arguments of tools/check_wheel.py."""
    number = version()
    date = release_date((ROOT / "CHANGELOG.md").read_text(), number)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        print(f"release: CHANGELOG.md says '{date}' of {number}: not yet a release", flush=True)
    for pattern in FILES:
        for old in directory.glob(pattern):
            old.unlink()
    source = build_sdist(directory)
    with tempfile.TemporaryDirectory(prefix="release_") as name:
        wheel = repair(build_wheel(source, Path(name)), directory)
    run(sys.executable, ROOT / "tools" / "check_wheel.py", "--wheel", wheel, *check)
    write_index(directory)
    for path in (source, wheel):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = top.add_subparsers(dest="part")
    for name, words in {
        "all": ("directory",), "sdist": ("directory",), "index": ("directory",),
        "repair": ("wheel", "directory"), "version": (),
    }.items():  # fmt: skip
        part = parts.add_parser(name)
        for word in words:
            part.add_argument(word, type=Path)
        if name == "version":
            part.add_argument("--tag", help="fail unless it is v and the version")
        if name == "index":
            part.add_argument("--platform", nargs="+", default=[], help="those that need a wheel")
        if name == "all":
            part.add_argument("check", nargs=argparse.REMAINDER, help="for tools/check_wheel.py")
    return top


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.part == "sdist":
        print(build_sdist(options.directory))
    elif options.part == "repair":
        print(repair(options.wheel, options.directory))
    elif options.part == "version":
        if options.tag not in (None, f"v{version()}"):
            raise SystemExit(f"release: the tag is {options.tag}, the version {version()}")
        print(version())
    elif options.part == "index":
        print(write_index(options.directory, options.platform))
    else:
        release(getattr(options, "directory", ROOT / "dist"), getattr(options, "check", []))


if __name__ == "__main__":
    main()
