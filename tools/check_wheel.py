"""Shows that one wheel serves several Pythons and several torch versions.

    python tools/check_wheel.py                                  # makes the environments
    python tools/check_wheel.py --env ENV1/bin/python --env ...  # uses existing ones
    python tools/check_wheel.py --wheel dist/torch_sgemm-....whl
    python tools/check_wheel.py --tests                          # and the fast tests pass there

The wheel is built once (with this Python), unpacked by each environment's pip into a directory
of its own, and must give the right product there. With --tests it is installed into each
environment as a user would, and the tests not marked slow run beside its files, not the
checkout's. Exit status 0 only if all pass.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch_sgemm", "torch_sgemm_autoload")
LEFT_BEHIND = (*PACKAGES, ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
# Products of each operator's kind against float64, in the environment under test.
PROBE = """
import json, platform, torch, torch_sgemm
torch.manual_seed(0)
worst = 0.0
devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
for device in devices:
    rows = [k for k in torch_sgemm.kernels() if device in k.devices and k.takes_float32]
    rows = [k for k in rows if k.takes(64, 128, 96)]
    names = [k.name for k in rows]
    picks = ["auto", *dict.fromkeys([names[0], names[len(names) // 2], names[-1]])]
    for m, n, k in ((1, 1, 1), (33, 65, 17), (64, 128, 96)):
        a, b = torch.randn(m, k, device=device), torch.randn(k, n, device=device)
        exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
        for kernel in picks:
            c = torch.ops.sgemm.mm(a, b, kernel=kernel)
            error = ((c.double() - exact).abs() / size).max().item() * 2.0**24
            assert error <= k + 2, (device, kernel, m, n, k, error)
            worst = max(worst, error)
print(json.dumps(dict(python=platform.python_version(), torch=torch.__version__,
                      devices="+".join(devices), worst=worst, at=torch_sgemm.__file__)))
"""


def run(*command: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(c) for c in command], text=True, capture_output=True, **more)


def build_wheel(directory: Path) -> Path:
    done = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
               "-w", directory, ROOT)  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return next(directory.glob("*.whl"))


def make_environment(python: str, torch: str, directory: Path) -> Path:
    """Makes a virtual environment of one Python with one torch."""
    for command in (
        [python, "-m", "venv", directory],
        [directory / "bin/python", "-m", "pip", "install", "-q", torch, "numpy"],
    ):
        done = run(*command)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return directory / "bin/python"


def check(python: Path, wheel: Path, directory: Path) -> dict[str, object]:
    """Returns the wheel's answer in one environment, or {"error": ...}."""
    done = run(python, "-m", "pip", "install", "-q", "--no-deps", "--target", directory, wheel)
    if done.returncode == 0:
        done = run(python, "-c", f"import sys; sys.path.insert(0, {str(directory)!r})\n{PROBE}",
                   cwd=directory)  # fmt: skip
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    answer = json.loads(done.stdout.splitlines()[-1])
    if not str(answer["at"]).startswith(str(directory)):
        return {"error": f"loaded {answer['at']} instead of the wheel"}
    return answer


def tree_of(wheel: Path, directory: Path) -> Path:
    """Copies the checkout to ``directory``, with the wheel's packages instead of its own."""
    shutil.copytree(ROOT, directory, ignore=shutil.ignore_patterns(*LEFT_BEHIND), symlinks=True)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(
            directory, [name for name in packed.namelist() if name.split("/")[0] in PACKAGES]
        )
    return directory


def fast_tests(python: Path, wheel: Path, directory: Path, on_gpu: bool) -> bool:
    """True if the tests not marked slow pass in an environment that gets the wheel."""
    done = run(python, "-m", "pip", "install", "-q", f"{wheel}[test,bench]")
    if done.returncode:
        print(done.stdout + done.stderr)
        return False
    command = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    command += [] if on_gpu else ["-n", "auto", "--dist", "loadgroup"]  # as `make test-fast`
    return subprocess.run(command, cwd=tree_of(wheel, directory)).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="this wheel instead of building one")
    parser.add_argument("--env", action="append", default=[], metavar="PYTHON",
                        help="an existing environment's Python (repeatable)")  # fmt: skip
    parser.add_argument("--make", action="append", default=[], metavar="PYTHON=TORCH",
                        help="make one, such as python3.13=torch==2.10.0 (repeatable)")  # fmt: skip
    parser.add_argument("--tests", action="store_true",
                        help="install it there and run the tests not marked slow")  # fmt: skip
    options = parser.parse_args()
    if options.tests and options.env:
        parser.error("--tests installs into the environments: only into those that it makes")

    pairs = [item.split("=", 1) for item in options.make]
    if not pairs and not options.env:
        found = [p for p in ("python3.10", "python3.13", "python3.12", "python3.11")
                 if shutil.which(p) and run(p, "--version").returncode == 0]  # fmt: skip
        if len(found) < 2:
            sys.exit(f"two Pythons are needed, found {found or 'none'}: name them with --env")
        pairs = [[found[0], "torch==2.10.0"], [found[1], "torch>=2.10"]]

    with tempfile.TemporaryDirectory(prefix="check_wheel_") as name:
        work = Path(name)
        wheel = options.wheel or build_wheel(work / "wheel")
        print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB")
        pythons = [Path(p).absolute() for p in options.env]
        pythons += [
            make_environment(python, torch, work / f"env{i}")
            for i, (python, torch) in enumerate(pairs)
        ]
        print(f"{'Python':<10}{'torch':<18}{'devices':<12}{'error / 2^-24':<15}result")
        failed = 0
        for i, python in enumerate(pythons):
            answer = check(python, wheel.absolute(), work / f"target{i}")
            if "error" in answer:
                failed += 1
                print(f"{python}: FAILED: {answer['error']}")
            else:
                print(f"{answer['python']:<10}{answer['torch']:<18}{answer['devices']:<12}"
                      f"{answer['worst']:<15.2f}passed", flush=True)  # fmt: skip
                on_gpu = "cuda" in str(answer["devices"])
                tree = work / f"tree{i}"
                if options.tests and not fast_tests(python, wheel.absolute(), tree, on_gpu):
                    failed += 1
                    print(f"{python}: FAILED: its fast tests, above")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
