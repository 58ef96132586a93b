"""tools/stalls.py: what it makes of Nsight Compute's table, without a GPU."""

from __future__ import annotations

import pytest
from stalls import Instruction, main, read_functions, read_source, report

# As ncu 2025.3 prints it: a line each for the kernel, the columns and each instruction.
OUTPUT = """==PROF== Connected to process 1
"Kernel Name","void f<(int)1>(float *)",
"Address","Source","# Samples","Instructions Executed","stall_wait","stall_no_inst","stall_wait (Not Issued)","stall_wait"
"0x00","      LDC R1, c[0x0][0x28]","3","8","1","2","1","9"
"0x10","@!P0  BRA 0x40","0","8","0","0","0","9"
"0x20","      FFMA.FTZ R2, R2, R3, R4","97","4096","97","0","50","9"
"Kernel Name","void g(float *)",
"Address","Source","# Samples","Instructions Executed","stall_wait","stall_no_inst","stall_wait (Not Issued)","stall_wait"
"0x00","      EXIT","0","8","0","0","0","9"
"""  # noqa: E501


def test_instructions_are_read() -> None:
    kernels = read_source(OUTPUT)
    assert list(kernels) == ["void f<(int)1>(float *)", "void g(float *)"]
    first, branch, product = kernels["void f<(int)1>(float *)"]
    assert first == Instruction("LDC", 3, 8, {"wait": 1, "no_inst": 2})  # not the second stall_wait
    assert branch == Instruction("BRA", 0, 8, {})
    assert product == Instruction("FFMA", 97, 4096, {"wait": 97})


def test_a_table_that_comes_twice_counts_once() -> None:
    assert read_source(OUTPUT + OUTPUT.partition("\n")[2]) == read_source(OUTPUT)


def test_launches_of_a_kernel_are_added_up() -> None:
    second = OUTPUT.partition("\n")[2].replace('"97","4096","97"', '"3","4","1"')
    product = read_source(OUTPUT + second)["void f<(int)1>(float *)"][2]
    assert product == Instruction("FFMA", 100, 4100, {"wait": 98})


def test_a_line_is_a_block_of_instructions_with_samples() -> None:
    f, g = read_source(OUTPUT).values()
    head = ["f", "  100 samples: wait 98, no_inst 2", "  the kernel's own: 100.0%"]
    assert report("f", f, 2)[:3] == head
    blocks = [line.split() for line in report("f", f, 2)[3:]]
    assert [line[:3] for line in blocks] == [["0", "3.0%", "8"], ["2", "97.0%", "4096"]]
    assert report("g", g, 2) == ["g", "  0 samples: "]


# As cuobjdump 13.0 prints it: two functions inside f<1>(float *), and f<1> itself.
ELF = """  index  value  size  info  other  shndx  name
 0x51  0x20  0xb50  0x2   0  0x96  $_Z1fILi1EEvPf$_ZN45_INTERNAL_3e3dacf7_14_split_sm90a_cu_0beefbd65sgemm4lookINS1_4TileILi128ELi64EEEEEvRKNS1_3JobE
 0x52  0x10  0x10  0x2   0  0x96  $_Z1fILi1EEvPf$_ZN5sgemm5PanelINS_4TileILi1EEEE3sumEPf
 0x53  0x0  0x30  0x12  0x10  0x96  _Z1fILi1EEvPf
"""  # noqa: E501


def test_samples_are_counted_by_function() -> None:
    functions = read_functions(ELF)
    assert functions == {"voidf<1>(float*)": [(1, "sum"), (2, "look")]}
    f = read_source(OUTPUT)["void f<(int)1>(float *)"]
    lines = [line for line in report("f", f, 2, functions["voidf<1>(float*)"]) if "%" in line]
    assert [line.split()[:2] for line in lines] == [
        ["the", "kernel's"],
        ["0", "3.0%"],
        ["look:", "97.0%"],
        ["2", "97.0%"],
    ]


def test_what_is_not_known_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["stalls.py"])
    with pytest.raises(SystemExit):
        main()
    assert "kernel" in capsys.readouterr().err
