"""Runs ONNX's backend suite in leanconv, compiled, and says what becomes of each case.

    python tests/conformance/run.py                   all; 1 if one that was right is not any more
    python tests/conformance/run.py --only test_nms   those whose names hold a pattern, one by one
    python tests/conformance/run.py --write           keep the right ones, and write the table

Cases run in processes of their own that are made anew where one hangs or crashes. `right.txt` has
the names of those that were right when it was written.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (ROOT / "src", ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from conformance.suite import (  # noqa: E402  found by the lines above
    GOOD,
    OTHER,
    OUTCOMES,
    REFUSED,
    RIGHT,
    UNNAMED,
    cases,
    known,
    operators,
    outcome,
)

KEPT = HERE / "right.txt"
TABLE = ROOT / "docs" / "results" / "conformance.md"
_ABOUT = """\
Written by `make conformance CONFORMANCE_ARGS=--write`: every case of the suite that the package
onnx brings, compiled by leanconv and compared as the suite compares. *With constants*: the file
holds shapes, axes and the like that the suite hands over as inputs. *As onnxruntime*: not what the
suite has, but what onnxruntime gives. *Unnamed*: refused by a message that names no operator."""
Found = Mapping[str, tuple[str, str]]
Answer = Callable[[str], tuple[str, str]]


def _of_case(name: str) -> tuple[str, str]:
    return outcome(cases()[name])


class Worker:
    """A process that runs cases, one at a time.

    Args:
        answer: gives what becomes of the case of a name.
    """

    def __init__(self, answer: Answer = _of_case) -> None:
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")  # so that cases are made once
        self.connection: Connection = ours
        self._process = context.Process(target=_serve, args=(theirs, ours, answer), daemon=True)
        self._process.start()
        theirs.close()
        self.name = ""
        self.since = 0.0

    def give(self, name: str) -> None:
        """Have it run a case."""
        self.name, self.since = name, monotonic()
        self.connection.send(name)

    def end(self) -> str:
        """End it; how it ended."""
        self._process.kill()
        self._process.join()
        self.connection.close()
        return f"the process ended with exit code {self._process.exitcode}"


def _serve(connection: Connection, other: Connection, answer: Answer) -> None:
    other.close()
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        connection.send(answer(name))


def run_all(
    names: Iterable[str], processes: int, limit_s: float, answer: Answer = _of_case
) -> dict[str, tuple[str, str]]:
    """Outcomes by name. A case that takes longer than the limit is ended, and one that crashes."""
    waiting, found = list(reversed(list(names))), {}
    workers = [Worker(answer) for _ in range(min(processes, len(waiting)))]
    busy: list[Worker] = []
    while waiting or busy:
        while waiting and workers:
            worker = workers.pop()
            worker.give(waiting.pop())
            busy.append(worker)
        ready = set(wait([each.connection for each in busy], timeout=0.5))
        for worker in list(busy):
            late = monotonic() - worker.since > limit_s
            if worker.connection not in ready and not late:
                continue
            busy.remove(worker)
            try:
                if worker.connection not in ready:
                    raise TimeoutError(f"took more than {limit_s:g} s")
                found[worker.name] = worker.connection.recv()
                workers.append(worker)
            except (EOFError, OSError) as error:
                ended = worker.end()
                found[worker.name] = OTHER, str(error) or ended
                workers.append(Worker(answer))
        _show(len(found), len(found) + len(waiting) + len(busy))
    for worker in workers:
        worker.end()
    return {name: found[name] for name in sorted(found)}


def _show(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)


def counted(found: Found) -> str:
    """How many there are of each outcome."""
    numbers = Counter(what for what, _ in found.values())
    shown = [f"{what} {numbers[what]:,}" for what in OUTCOMES if numbers[what] or what in GOOD]
    return f"{len(found):,} cases: {', '.join(shown)}"


def refusals(found: Found) -> dict[str, int]:
    """How many cases each operator is refused in, the most first.

    An operator's own case names it; of others, the one that the message names.
    """
    numbers: Counter[str] = Counter()
    for name, (what, text) in found.items():
        if what not in (REFUSED, UNNAMED):
            continue
        held = operators(cases()[name].load()[0])
        named = [each for each in re.findall(r"\w+", text) if each in held]
        numbers[named[0] if named else "(unnamed)"] += 1
    return dict(numbers.most_common())


def page(found: Found) -> str:
    """The table for `docs/results`."""
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for name, (what, _) in found.items():
        kinds[cases()[name].kind][what] += 1
    rows = [(kind, counts) for kind, counts in sorted(kinds.items())]
    total: Counter[str] = Counter()
    for _, counts in rows:
        total += counts
    lines = [
        "# ONNX's backend suite",
        "",
        *_ABOUT.splitlines(),
        "",
        "| part | cases | " + " | ".join(OUTCOMES) + " |",
        "|---" * (len(OUTCOMES) + 2) + "|",
    ]
    for kind, counts in (*rows, ("all", total)):
        numbers = [counts.total(), *(counts[each] for each in OUTCOMES)]
        lines.append(f"| {kind} | " + " | ".join(f"{n:,}" for n in numbers) + " |")
    lines += ["", "## Refused, by operator", "", "| operator | cases |", "|---|---|"]
    lines += [f"| {op} | {number} |" for op, number in refusals(found).items()]
    return "\n".join(lines) + "\n"


def regressed(found: Found, kept: Mapping[str, str]) -> list[str]:
    """Cases that were right and are not any more, or only with constants."""
    return [
        f"{name} was {kept[name]}, is {what}: {text}"
        for name, (what, text) in found.items()
        if name in kept and (what not in GOOD or (kept[name] == RIGHT and what != RIGHT))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="those whose name holds it")
    parser.add_argument("--write", action="store_true", help="keep what is right now")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="of a case")
    given = parser.parse_args(arguments)
    names = [name for name in cases() if re.search(given.only, name)]
    if given.write and given.only:
        parser.error("--write keeps all cases: leave --only out")
    found = run_all(names, given.processes, given.limit)
    for name, (what, text) in found.items():
        if given.only or what not in (*GOOD, REFUSED):
            print(f"{name}: {what}{f': {text[:400]}' if text else ''}")
    if not given.only:
        print("refused: " + ", ".join(f"{op} {n}" for op, n in refusals(found).items()))
    print(counted(found))
    if given.write:
        lines = [
            n if what == RIGHT else f"{n}: {what}" for n, (what, _) in found.items() if what in GOOD
        ]
        KEPT.write_text("\n".join(lines) + "\n", "utf-8")
        TABLE.write_text(page(found), "utf-8")
        return 0
    worse = regressed(found, known(KEPT)) if KEPT.exists() else []
    for line in worse:
        print(f"worse: {line[:400]}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
