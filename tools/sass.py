"""Instruction mix of a kernel's hottest loop, from the library's machine code. No GPU is needed.

    python tools/sass.py thread_tile_2d_128
    python tools/sass.py thread_tile_2d_128 --arch 90 --listing

The hottest loop is the one with the most FFMA of its own (loops inside it, such as those that
load a tile, are counted apart). The fraction of FFMA among its instructions bounds the kernel: an
SM issues four instructions a cycle, useful or not.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import kernel_symbols  # noqa: E402

LIBRARY = kernel_symbols.ROOT / "torch_sgemm" / "libtorch_sgemm.so"
WIDE = {"LDS", "STS", "LDG", "STG", "LDL", "STL"}  # opcodes whose access width matters


@dataclass(frozen=True)
class Instruction:
    address: int
    text: str

    @property
    def opcode(self) -> str:
        return self.text.split()[1 if self.text.startswith("@") else 0].rstrip(";")

    @property
    def kind(self) -> str:
        """The opcode without modifiers that don't change the cost: "FFMA", "LDS.128", "BRA"."""
        parts = self.opcode.split(".")
        width = [p for p in parts[1:] if p in ("64", "128")]
        return ".".join([parts[0], *width]) if parts[0] in WIDE else parts[0]

    @property
    def target(self) -> int | None:
        """The target of a direct branch."""
        found = re.search(r"\bBRA\b.*?\b0x([0-9a-f]+)", self.text)
        return int(found[1], 16) if found else None


def find_cuobjdump() -> str:
    """Finds cuobjdump of the CUDA toolkit, or the one that triton brings along with torch."""
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    candidates = [shutil.which("cuobjdump"), *(f"{h}/bin/cuobjdump" for h in homes if h)]
    try:
        import triton

        root = Path(triton.__file__).parent
        candidates.append(str(root / "backends" / "nvidia" / "bin" / "cuobjdump"))
    except ImportError:
        pass
    for path in candidates:
        if path and Path(path).is_file():
            return path
    raise SystemExit("no cuobjdump: it comes with the CUDA toolkit and with triton (pip)")


def disassemble(
    library: Path, arch: str, names: Collection[str] = ()
) -> dict[str, list[Instruction]]:
    """Maps mangled kernel names, all or ``names``, to instructions on one ``arch``: "sm_90a"."""
    some = ["-fun", ",".join(names)] if names else []
    command = [find_cuobjdump(), "-sass", "-arch", arch, *some, str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr or done.stdout)
    kernels: dict[str, list[Instruction]] = {}
    for line in done.stdout.splitlines():
        start = re.search(r"Function : (\S+)", line)
        if start:
            body = kernels.setdefault(start[1], [])
            continue
        found = re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?;)", line)
        if found:
            body.append(Instruction(int(found[1], 16), found[2].strip("{} ")))
    return kernels


def loops(body: list[Instruction]) -> list[list[Instruction]]:
    """Returns each loop's own instructions: from a branch's target to it, less inner loops."""
    spans = sorted(
        {(i.target, i.address) for i in body if i.target is not None and i.target < i.address}
    )  # a branch to itself only pads the end
    found = []
    for a, b in spans:
        inner = [(c, d) for c, d in spans if (c, d) != (a, b) and a <= c and d <= b]
        found.append(
            [i for i in body if a <= i.address <= b
             and not any(c <= i.address <= d for c, d in inner)]
        )  # fmt: skip
    return found


def hottest(body: list[Instruction]) -> list[Instruction]:
    """Returns the loop with the most FFMA of its own; the whole kernel if it has no loop."""
    return max(loops(body), default=body, key=lambda loop: (count(loop)["FFMA"], -len(loop)))


def count(body: list[Instruction]) -> Counter[str]:
    # FFMA2 (Blackwell) is one instruction that does two products.
    return Counter(i.kind for i in body if i.kind != "NOP")


def architectures(library: Path) -> list[str]:
    listing = subprocess.run(
        [find_cuobjdump(), "--list-elf", str(library)], capture_output=True, text=True
    ).stdout
    return sorted(set(re.findall(r"\.(sm_\w+)\.cubin", listing)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernel", help="name of a row of the kernel table")
    parser.add_argument("--arch", help="such as 90; default: 90a or 90 if built, else the newest")
    parser.add_argument("--symbol", default="", metavar="REGEX", help="the kernel's symbol instead")
    parser.add_argument("--listing", action="store_true", help="print the loop's instructions too")
    parser.add_argument("--library", type=Path, default=LIBRARY)
    options = parser.parse_args()

    built = architectures(options.library)
    if not built:
        raise SystemExit(f"{options.library} holds no CUDA code: build it with CUDA (make info)")
    default = [a for a in ("sm_90", "sm_90a") if a in built] or built
    wanted = [f"sm_{options.arch}"] if options.arch else default
    kernels: dict[str, list[Instruction]] = {}
    for arch in wanted:
        if arch not in built:
            raise SystemExit(f"{arch} isn't in the library, which has {' '.join(built)}")
        kernels |= disassemble(options.library, arch)
    mangled, name = kernel_symbols.find_symbol(options.kernel, list(kernels), options.symbol)

    body = kernels[mangled]
    loop = hottest(body)
    mix = count(loop)
    total = sum(mix.values())
    print(f"{name}\n{' '.join(wanted)}: {len(body)} instructions, {len(loops(body))} loops")
    print(
        f"hottest loop: 0x{loop[0].address:04x} to 0x{loop[-1].address:04x}, {total} instructions"
    )
    for kind, number in mix.most_common():
        print(f"  {kind:<12}{number:>6}  {100 * number / total:5.1f} %")
    print(f"FFMA fraction: {(mix['FFMA'] + mix['FFMA2']) / total:.3f}")
    if options.listing:
        for instruction in loop:
            print(f"  {instruction.address:04x}  {instruction.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
