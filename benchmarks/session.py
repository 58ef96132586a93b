"""The device, the options, the record and the terminal, which all measuring commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import machine, record, tables
from benchmarks.sides import strict_float32
from benchmarks.timing import Options, spin_up

Step = Callable[[str], None]
Describe = Callable[[Options, torch.device], str]
RECORDED = "\nOn a GPU, as recorded:"


class Session:
    """One run of one command."""

    def __init__(self, args: argparse.Namespace, timing: str | Describe = Options.describe) -> None:
        strict_float32()
        check_output(args.output)
        self.args = args
        self.device = pick_device(args.device)
        self.on_gpu = self.device.type == "cuda"
        self.seed: int = args.seed
        self.options = Options(
            rounds=max(2, args.rounds),
            budget=args.budget,
            idle=args.idle,
            sustained=args.sustained and self.on_gpu,
        )
        self.record = record.new_record(
            args.command,
            machine.describe(self.device),
            timing if isinstance(timing, str) else timing(self.options, self.device),
            asdict(self.options) | {"seed": args.seed},
        )
        self.record["before"] = machine.state(self.device)
        self.sampler = machine.Sampler(self.device)
        self._announce()

    def _announce(self) -> None:
        about = self.record["machine"]
        tables.say(f"[bold]{self.args.command}[/] on {about['name']}, seed {self.seed}")
        tables.say(self.record["timing"])
        if not self.on_gpu:
            tables.say(
                "[bold yellow]No GPU is used:[/] the rungs run their CUDA source on the CPU through"
                " an emulator. These times compare neither kernels nor GPUs.\n"
            )
        elif not self.record["before"]:
            tables.say("[yellow]nvidia-smi does not answer: clocks and power are unknown.[/]\n")

    @contextmanager
    def progress(self, total: int) -> Iterator[Step]:
        """Shows a progress bar and samples clocks; the yielded function takes the next label."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(),
        )  # fmt: skip
        spin_up(self.device)
        with self.sampler, Progress(*columns, console=tables.console, transient=True) as bar:
            task = bar.add_task("", total=total)
            begun = False

            def step(what: str) -> None:
                nonlocal begun
                bar.update(task, description=what, advance=1 if begun else 0)
                begun = True

            yield step

    def finish(self) -> tuple[Path, int]:
        """Saves the record; returns its path and the exit status: 1 if a row failed or is wrong."""
        self.record["after"] = machine.state(self.device)
        path = record.save(self.record, record.output_path(self.record, self.args.output))
        tables.say(f"\n{record.provenance(self.record)}")
        tables.say(f"Record: {path}")
        return path, tables.report_failures(self.record["rows"])

    def show_recorded(self, show: Callable[[dict], None]) -> None:
        """Prints the recorded GPU figures, on a machine without its own."""
        if self.on_gpu:
            return
        found = record.latest_gpu(self.args.command)
        if found is None:
            where = record.default_path(self.record).parent.relative_to(record.ROOT)
            tables.say(f"\nThere is no GPU record yet ({where}/{self.args.command}-*).")
            return
        tables.say(RECORDED)
        show(found)
        tables.say(record.provenance(found))


def check_names(
    option: str, given: Collection[str] | None, known: Collection[str], what: str
) -> None:
    """Raises RuntimeError, which lists the known names, if the command line has another one."""
    for name in given or ():
        if name not in known:
            raise RuntimeError(f"{option} {name}: no such {what}; there are {', '.join(known)}")


def check_kernels(given: Collection[str] | None, here: Collection[str]) -> None:
    """Raises RuntimeError for a row in --kernel that isn't among those here."""
    for name in given or ():
        if name not in here:
            raise RuntimeError(f"--kernel {name}: accepted here: {', '.join(here)}")


def check_output(path: Path | None) -> None:
    """Raises RuntimeError before any measurement if a folder can't be made."""
    if path is None:
        return
    folder = path if record.is_folder(path) else path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise RuntimeError(
            f"--output {path}: {failure.strerror}: {failure.filename}; accepted: a file that ends "
            f"in {record.JSON} or {record.LINES}, or a folder"
        ) from None


def pick_device(name: str) -> torch.device:
    """Returns a device; ``auto`` is the current GPU, or the CPU if there is none.

    Raises RuntimeError if a GPU is asked for and torch sees none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            built = torch.version.cuda or "none"
            raise RuntimeError(f"--device cuda: torch sees no GPU (built for CUDA: {built})")
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
