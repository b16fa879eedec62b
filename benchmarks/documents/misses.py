"""The MEC paper's count of cache misses on cv10, from the results of `cache_misses.py`."""

from __future__ import annotations

import json

from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio
from harness import RESULTS
from leanconv.units import format_bytes

_MIB = 2**20
_PAPER = 20 * _MIB  # the last cache of its server, an E5-2680
_IM2COL, _MEC = "im2col:rows=whole", "mec:solution=A"  # A: rows of cv10 have 26 windows
_PRINTED = {_IM2COL: ("under 4 %", 4.0), _MEC: ("0.3 %", 0.3)}


def _measure(effort: Effort) -> Data:
    del effort
    found = json.loads((RESULTS / "cache_misses.json").read_text(encoding="utf-8"))
    machine = found["machine"]
    caches = {
        method: {str(c["last_bytes"]): c["first"]["all"] for c in one["caches"]}
        for method, one in found["methods"].items()
    }
    return {"commit": machine["commit"], "date": machine["time_utc"][:10], "misses": caches}


def _share(counts: Data) -> float:
    return float(100 * counts["last_misses"] / counts["references"])


def _show(data: Data) -> Page:
    misses = data["misses"]
    sizes = list(next(iter(misses.values())))
    rows = [
        [
            f"`{method}`",
            *(f"{_share(by[s]):.2f} % of {by[s]['references']:,}" for s in sizes),
        ]
        for method, by in misses.items()
    ]
    claims = []
    for method, (printed, number) in _PRINTED.items():
        ours = _share(misses[method][str(_PAPER)])
        claims.append(
            Claim(f"misses of the last cache, `{method}`", printed, f"{ours:.2f} %",
                  ratio(ours, number), "20 MiB, as the paper's server has them, a first pass; each "
                  "line is fetched once. The share depends on how many references a register tile "
                  "saves")
        )  # fmt: skip
    text = (
        f"cv10, one image, counted by cachegrind ({data['date']}, commit {data['commit']}), by the "
        "size of the last cache. [The page of all counts](../../cache_misses.md)."
    )
    heads = ["", *(format_bytes(int(s)) for s in sizes)]
    return Page([Table(text, heads, rows)], claims)


FIGURES = (
    Figure("mec-llc", "MEC, section 4", "Misses of the last cache", _measure, _show, quiet=False,
           minutes=0.1),
)  # fmt: skip
