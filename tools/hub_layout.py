"""Lays out a build as huggingface/kernels loads it: DIRECTORY/build/VARIANT/, package and metadata.

    python tools/hub_layout.py DIRECTORY                  # builds with a namespace of its own
    python tools/hub_layout.py DIRECTORY --namespace NAME

A process may load several versions of a kernel. So the operators' namespace has a digest of its
contents in its name, and the package's modules import each other relatively; the metadata's "id"
becomes their package's name. VARIANT is torch's stable ABI from 2.10 on: one build for every later
torch of one CUDA major version. TORCH_SGEMM_CUDA and a build's other variables hold here too.
``kernels.get_local_kernel(DIRECTORY)`` loads the result.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path

import build_config as config
import build_env as env
import build_library
from release import version

ROOT = build_library.ROOT
PACKAGE = "torch_sgemm"
# Commands, which python -m finds in an installed package only.
COMMANDS = ("advise.py", "info.py", "report.py", "tuner.py")
MINIMUM = "0.17.0"  # the first version of kernels that this layout was tried with


def sources() -> list[Path]:
    """Returns the package's modules, without its commands."""
    found = sorted((ROOT / PACKAGE).rglob("*.py"))
    return [path for path in found if path.name not in COMMANDS]


def _name(path: Path) -> str:
    return path.relative_to(ROOT / PACKAGE).as_posix()


def relative(text: str, depth: int = 0) -> str:
    """Returns a module's text with this package's own modules imported relatively.

    ``depth`` is the number of folders between the package and the module.

    Raises:
        SystemExit: an import has another form than ``from torch_sgemm... import``.
    """
    own = rf"^(\s*)from {PACKAGE}(?:\.([\w.]+))? import"
    text = re.sub(own, rf"\1from {'.' * (depth + 1)}\2 import", text, flags=re.M)
    for node in ast.walk(ast.parse(text)):
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        if any(name.split(".")[0] == PACKAGE for name in names):
            raise SystemExit(f"hub_layout: line {node.lineno} imports {PACKAGE} absolutely")
    return text


def unique_namespace(backend: str) -> str:
    """Returns ``torch_sgemm_cuda_1a2b3c4d``, with a digest of the library and its modules."""
    digest = hashlib.sha256(build_library.compiled_digest().encode())
    for path in sources():
        digest.update(_name(path).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{PACKAGE}_{backend}_{digest.hexdigest()[:8]}"


def variant(info: dict) -> str:
    """Returns ``torch-stable-abi210-cu130-x86_64-linux``, from a build's build_info.json."""
    stable = "".join(map(str, config.TORCH_FLOOR))
    backend = "cpu"
    if info["cuda"]:
        backend = "cu" + "".join(map(str, config.version_tuple(info["toolkit"]["version"])))
    return f"torch-stable-abi{stable}-{backend}-{platform.machine()}-{platform.system().lower()}"


def capabilities(architectures: list[str]) -> list[str]:
    """Returns ``["8.0", "9.0a", "12.0+PTX"]`` for ``["80", "90a", "120-virtual"]``."""
    found = [re.fullmatch(r"(\d+)(\d)([af]?)(-virtual)?", name) for name in architectures]
    return [f"{m[1]}.{m[2]}{m[3]}{'+PTX' if m[4] else ''}" for m in found if m]


def metadata(info: dict) -> dict:
    """Returns metadata.json of a variant, with the major version, which ``get_kernel`` asks for."""
    backend: dict = {"type": "cuda" if info["cuda"] else "cpu"}
    if info["cuda"]:
        backend["archs"] = capabilities(info["architectures"])
    return {
        "id": info["namespace"],
        "name": PACKAGE.replace("_", "-"),
        "version": config.version_tuple(info["version"])[0],
        "kernels-minver": MINIMUM,
        "license": "MIT",
        "python-depends": [],
        "backend": backend,
    }


def lay_out(built: Path, directory: Path) -> Path:
    """Makes the variant's folder in ``directory``/build from the library and account in ``built``.

    Another build of the same variant is replaced.
    """
    info = json.loads((built / build_library.INFO).read_text())
    target = directory / "build" / variant(info)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in sources():
        copy = target / _name(path)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(relative(path.read_text(), _name(path).count("/")))
    for name in (build_library.LIBRARY, build_library.INFO):
        shutil.copy2(built / name, target / name)
    (target / "metadata.json").write_text(json.dumps(metadata(info), indent=2) + "\n")
    return target


def backend_of_build() -> str:
    """Returns ``"cuda"`` or ``"cpu"``, as the build will decide."""
    torch = config.check_torch(env.find_torch(), f"the environment {sys.prefix}")
    force, source = (
        os.environ.get(f"TORCH_SGEMM_{name}", "") for name in ("CUDA", "TOOLKIT")
    )  # fmt: skip
    return "cuda" if config.choose_toolkit(torch, env.find_nvcc(), force, source).cuda else "cpu"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--namespace", help="of the operators (default: one with a digest)")
    options = parser.parse_args(arguments)
    if options.directory.exists() and not options.directory.is_dir():
        parser.error(f"{options.directory} is a file; accepted: a folder, which need not exist")
    name = config.check_namespace(options.namespace or unique_namespace(backend_of_build()))
    os.environ["TORCH_SGEMM_NAMESPACE"] = name
    with tempfile.TemporaryDirectory(prefix="hub_layout_") as built:
        build_library.build([Path(built)], version())
        print(lay_out(Path(built), options.directory))


if __name__ == "__main__":
    main()
