"""Convolutions of large padding between pages that cannot be read: `chosen`, or `SEED SECONDS`.

The process that starts this one sees a fault as an exit code, and the case that was begun as the
last line. Random cases run for so many seconds of CPU time.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections import Counter
from collections.abc import Iterator

from leanconv.errors import SpecError, UnsupportedError
from support.padded_cases import Case, chosen_cases
from support.random_padding import random_case


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def random_cases(first: int, seconds: float) -> Iterator[tuple[str, Case]]:
    end, seed = time.process_time() + seconds, first
    while time.process_time() < end:
        yield str(seed), random_case(seed)
        seed += 1


def main() -> None:
    faulthandler.enable()
    if sys.argv[1] == "chosen":
        cases = ((name, case) for name, found in chosen_cases().items() for case in found)
    else:
        cases = random_cases(int(sys.argv[1]), float(sys.argv[2]))
    ran: Counter[str] = Counter()
    refused = 0
    for name, case in cases:
        say(f"{name}: {case}")
        try:
            case.check()
        except (SpecError, UnsupportedError):
            refused += 1
        else:
            ran[name if sys.argv[1] == "chosen" else ""] += 1
    for name, count in ran.items():
        say(f"ran {count} {name}")
    say(f"done {sum(ran.values())} refused {refused}")


if __name__ == "__main__":
    main()
