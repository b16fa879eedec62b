"""Which results are older than the kernels that they speak of.

    python benchmarks/stale.py             one line for each file in docs/results; exit code 0
    python benchmarks/stale.py --strict    exit code 3 if a result is older than its kernels

A result names the commit that it was measured at. Counted are the later commits that changed what
decides speed: algorithms, code generation, kernels, the planner's costs, the runtime.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, script
from leanconv.cli.output import print_table

RESULTS = ROOT / "docs" / "results"
DECIDES = ("algorithms", "codegen", "kernels", "operators", "runtime", "target", "winograd")
GPU = ("gpu",)


@dataclass(frozen=True)
class Age:
    """How old a result is.

    Attributes:
        file: under docs/results.
        commit, date: of its measurement; empty where it names none.
        later: commits since then that changed what decides speed; None if that is not known.
    """

    file: str
    commit: str
    date: str
    later: int | None


def machines(document: Any) -> Iterator[dict[str, Any]]:
    """The machines that a result names, with commit and date."""
    if isinstance(document, dict):
        found = document.get("machine")
        if isinstance(found, dict):
            yield found
        for value in document.values():
            yield from machines(value)


def age(file: Path) -> Age:
    """The age of one result, by its oldest machine."""
    found = list(machines(json.loads(file.read_text(encoding="utf-8"))))
    oldest = min(found, key=lambda machine: machine.get("time_utc", ""), default={})
    commit = (oldest.get("commit") or "").removesuffix("+changes")
    name = str(file.relative_to(RESULTS))
    folders = GPU if file.stem == "gpu" else DECIDES
    return Age(name, commit, oldest.get("time_utc", "")[:10], changes_since(commit, folders))


def changes_since(commit: str, folders: tuple[str, ...]) -> int | None:
    """Commits after one that changed these folders; None if it is not here.

    Args:
        commit: of a measurement.
        folders: of the package, or with a slash of the checkout.
    """
    if not commit:
        return None
    paths = [folder if "/" in folder else f"src/leanconv/{folder}" for folder in folders]
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-list", "--count", f"{commit}..HEAD", "--", *paths],
        capture_output=True,
        text=True,
        check=False,
    )
    return int(done.stdout) if done.returncode == 0 else None


def main() -> int:
    """Print the ages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strict", action="store_true", help="exit code 3 if a result is stale")
    options = parser.parse_args()
    ages = [age(file) for file in sorted(RESULTS.rglob("*.json"))]
    rows = [
        [a.file, a.date or "-", a.commit or "-", "unknown" if a.later is None else str(a.later)]
        for a in ages
    ]
    print_table(["result", "measured", "commit", "changes of kernels since"], rows)
    old = [a.file for a in ages if a.later != 0]
    print(f"{len(old)} of {len(ages)} results are older than the kernels, or do not say")
    return 3 if options.strict and old else 0


if __name__ == "__main__":
    script(main)
