"""RapidOCR and a face detector from PyPI, on onnxruntime and on leanconv, side by side.

    python examples/ocr/compare.py                      twenty pages, twenty pictures, one thread
    python examples/ocr/compare.py --what text --pictures 5 --threads 2 --rounds 5

Each engine runs in a process of its own, and they take turns. leanconv is started twice: the first
time with an empty cache folder, so that everything is compiled; the second time is every later one.
The exit code is 1 if what they find differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.ocr.worker import ENGINES, TASKS

WORKER = Path(__file__).resolve().with_name("worker.py")


class Worker:
    """An engine in a process of its own."""

    def __init__(self, engine: str, what: str, pictures: int, threads: int, cache: str) -> None:
        command = [sys.executable, str(WORKER), engine, what, f"--pictures={pictures}"]
        self._process = subprocess.Popen(
            [*command, f"--threads={threads}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LEANCONV_CACHE_DIR": cache},
        )
        self.loaded = self._said()

    def round(self) -> dict[str, Any]:
        """Have it go over all pictures once."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._said()

    def end(self) -> None:
        """Let it end."""
        self._process.communicate()

    def _said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{WORKER.name} ended with exit code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


@dataclass
class Measured:
    """What one engine did: seconds, bytes, and what it found on each picture."""

    loaded: dict[str, Any]
    cold: dict[str, Any]
    rounds: list[dict[str, Any]] = field(default_factory=list)

    @property
    def first_s(self) -> float:
        """Loading and the first picture."""
        return float(self.loaded["load_s"] + self.cold["seconds"][0])

    @property
    def cold_s(self) -> float:
        """Loading and all pictures, each for the first time."""
        return float(self.loaded["load_s"] + sum(self.cold["seconds"]))

    @property
    def warm_s(self) -> float:
        """All pictures again: the median of each over the rounds, added up."""
        columns = zip(*(each["seconds"] for each in self.rounds), strict=True)
        return float(sum(map(median, columns)))

    @property
    def peak_bytes(self) -> int:
        """The most resident memory of the process."""
        return int(max(each["peak_bytes"] for each in (self.cold, *self.rounds)))


def measure(what: str, pictures: int, threads: int, rounds: int) -> dict[str, Measured]:
    """Run both engines; `leanconv, first time` is with nothing compiled before."""
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        given = what, pictures, threads, cache
        first = Worker("leanconv", *given)
        found["leanconv, first time"] = Measured(first.loaded, first.round())
        first.end()
        workers = {engine: Worker(engine, *given) for engine in ENGINES}
        for engine, worker in workers.items():
            found[engine] = Measured(worker.loaded, worker.round())
        for _ in range(rounds):
            for engine, worker in workers.items():
                found[engine].rounds.append(worker.round())
        for worker in workers.values():
            worker.end()
    return found


def table(what: str, found: dict[str, Measured]) -> str:
    """Times and memory, one engine in each column."""
    ours, theirs, first = (found[k] for k in ("leanconv", "onnxruntime", "leanconv, first time"))
    count = len(ours.cold["seconds"])
    rows = [
        ("load and first picture, nothing compiled", theirs.first_s, first.first_s),
        ("load and first picture, later processes", theirs.first_s, ours.first_s),
        (f"load and all {count}, nothing compiled", theirs.cold_s, first.cold_s),
        (f"load and all {count}, later processes", theirs.cold_s, ours.cold_s),
        (f"all {count} again", theirs.warm_s, ours.warm_s),
    ]
    names = [f"{each.loaded['engine']} {each.loaded['version']}" for each in (theirs, ours)]
    lines = [f"| {what} | {names[0]} | {names[1]} | ratio |", "|---|---|---|---|"]
    lines += [f"| {name} | {a:.2f} s | {b:.2f} s | {a / b:.2f} |" for name, a, b in rows]
    peaks = [each.peak_bytes / 2**20 for each in (theirs, ours)]
    lines.append(
        f"| peak memory | {peaks[0]:.0f} MiB | {peaks[1]:.0f} MiB | {peaks[0] / peaks[1]:.2f} |"
    )
    return "\n".join(lines)


def differing(found: dict[str, Measured]) -> list[str]:
    """Pictures on which what was found differs, with both answers."""
    pairs = zip(*(found[engine].cold["answers"] for engine in ENGINES), strict=True)
    return [f"picture {i}: {a} and {b}" for i, (a, b) in enumerate(pairs) if a != b]


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=TASKS, help="one of them alone")
    parser.add_argument("--pictures", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="over all pictures, once warm")
    given = parser.parse_args(arguments)
    code = 0
    for what in [given.what] if given.what else TASKS:
        found = measure(what, given.pictures, given.threads, given.rounds)
        different = differing(found)
        answers = found["leanconv"].cold["answers"]
        print(table(what, found))
        print(
            f"{sum(map(len, answers))} found on {len(answers)} pictures, the same on "
            f"{len(answers) - len(different)}; threads {given.threads}\n"
        )
        for line in different:
            print(line)
        code |= bool(different)
    return code


if __name__ == "__main__":
    sys.exit(main())
