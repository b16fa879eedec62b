"""Two results of `networks.py` or `layers.py`, before and after, case by case.

    python benchmarks/compare.py before.json after.json

Times of different minutes drift with the machine; what is compared first is therefore the ratio to
the best other engine, measured in the same rounds. Exit code 3 if it fell by more than
`--tolerance` anywhere.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from harness import script
from leanconv.cli.engines.rounds import OURS
from leanconv.cli.output import print_json, print_table
from leanconv.errors import InputError
from leanconv.units import format_ns


def read(file: Path) -> dict[str, Any]:
    """Return the cases of a result by name.

    Raises:
        InputError: the file is no result.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return {case["name"]: case for case in document["cases"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not a result of networks.py or layers.py: {error}") from error


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Return, for each case in both, our time and best ratio, before and after."""
    result = []
    for name in before:
        if name not in after:
            continue
        old, new = before[name], after[name]
        result.append(
            {
                "name": name,
                "before_ns": old["engines"].get(OURS, {}).get("median_ns"),
                "after_ns": new["engines"].get(OURS, {}).get("median_ns"),
                "before_ratio": old["ratios"].get("best"),
                "after_ratio": new["ratios"].get("best"),
            }
        )
    return result


def worse(change: dict[str, Any], tolerance: float) -> bool:
    """Whether the ratio fell by more than the tolerance, or is gone."""
    before, after = change["before_ratio"], change["after_ratio"]
    return before is not None and (after is None or after < before * (1 - tolerance))


def main() -> int:
    """Compare what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.05, help="share (default 0.05)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = changes(read(options.before), read(options.after))
    if not found:
        raise InputError("the two results have no case in common")
    fallen = [change["name"] for change in found if worse(change, options.tolerance)]
    if options.json:
        print_json({"changes": found, "worse": fallen})
    else:
        print_table(
            ["", "before", "after", "best/ours before", "after"],
            [
                [
                    change["name"],
                    *[_time(change[key]) for key in ("before_ns", "after_ns")],
                    *[_ratio(change[key]) for key in ("before_ratio", "after_ratio")],
                ]
                for change in found
            ],
        )
        for name in fallen:
            print(f"worse: {name}")
    return 3 if fallen else 0


def _time(value_ns: float | None) -> str:
    return "-" if value_ns is None else format_ns(value_ns)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    script(main)
