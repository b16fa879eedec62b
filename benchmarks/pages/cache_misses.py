"""The page of `cache_misses.py`."""

from __future__ import annotations

from typing import Any

from leanconv.spec import ConvSpec
from leanconv.units import format_bytes
from pages.tables import measured_on, table
from pages.wrapping import wrapped

IM2COL, MEC = "im2col:rows=whole", "mec:solution=B"


def page(document: dict[str, Any]) -> str:
    """Write the page of a result."""
    first = document["first_cache"].split(",")
    spec = ConvSpec.parse(document["problem"])
    fixed = spec.input_bytes + spec.weight_bytes + spec.output_bytes
    sizes = {m: fixed + document["methods"][m]["lowered_bytes"] for m in (IM2COL, MEC)}
    lines = [
        f"# Misses of the last cache: {document['layer']}, im2col against MEC",
        "",
        "Written by `python benchmarks/cache_misses.py`, which says how it counts: cachegrind, "
        f"`{document['problem']}`, float32, {document['layout']}, one thread, code for "
        f"`{document['target']}`, a first data cache of {format_bytes(int(first[0]))} with "
        f"{first[1]} ways, lines of 64 bytes. Share: misses of the last cache over data "
        f"references. Counted on {measured_on(document)}",
        "",
        *table(
            ["figure", "document", "ours (20 MiB, first pass)", "accounting"],
            [
                _figure(document, "im2col", IM2COL, "under 4 %"),
                _figure(document, "MEC", MEC, "0.3 %"),
            ],
        ),
        "",
        "The paper's server has an E5-2680, whose last cache is 20 MiB, and cachegrind takes the "
        f"host's unless told otherwise. im2col's matrix, the filters, input and output are "
        f"{_mib(sizes[IM2COL])}, MEC's together {_mib(sizes[MEC])}: in 20 MiB both fit, so that a "
        "first pass fetches each line once, and a further one none. The paper's pair of numbers "
        f"appears in a cache between the two: {_at(document, IM2COL, 2)} and "
        f"{_at(document, MEC, 2)} in 2 MiB, where the matrix is fetched again for every panel of "
        "output channels, and MEC's tensor is not. In 1 MiB neither fits. Each step of a register "
        "tile takes its vectors and, one by one, its elements of x (im2col "
        f"{_tile(document, IM2COL)}, MEC {_tile(document, MEC)}): with other tiles the references, "
        "and so the shares, are others for the same misses.",
        "",
    ]
    for kind, title in (
        ("first", "First pass: nothing is in the caches"),
        ("further", "Further pass"),
    ):
        lines += [f"## {title}", "", *_passes(document, kind), ""]
    return wrapped("\n".join(lines).rstrip())


def _tile(document: dict[str, Any], method: str) -> str:
    """Elements of x by vectors of a step."""
    parameters: str = document["methods"][method]["parameters"]
    return parameters.partition("tile ")[2].partition(",")[0]


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _first_pass(document: dict[str, Any], method: str, mib: int) -> dict[str, int]:
    caches = document["methods"][method]["caches"]
    cache = next(c for c in caches if c["last_bytes"] == mib * 2**20)
    found: dict[str, int] = cache["first"]["all"]
    return found


def _at(document: dict[str, Any], method: str, mib: int) -> str:
    return _share(_first_pass(document, method, mib))


def _figure(document: dict[str, Any], label: str, method: str, said: str) -> list[str]:
    n = _first_pass(document, method, 20)
    return [
        label,
        said,
        _share(n),
        f"{n['last_misses']:,} of {n['references']:,} references",
    ]


def _share(n: dict[str, int]) -> str:
    return f"{100 * n['last_misses'] / max(1, n['references']):.2f} %"


def _passes(document: dict[str, Any], kind: str) -> list[str]:
    sizes = [c["last_bytes"] for c in next(iter(document["methods"].values()))["caches"]]
    rows = []
    for method, result in document["methods"].items():
        caches = result["caches"]
        for name in ("all", *result["functions"]):
            n = caches[0][kind][name]
            row = [f"`{method}`" if name == "all" else f"of {name}"]
            row += [f"{n['references']:,}", f"{n['first_misses']:,}"]
            for cache in caches:
                found = cache[kind][name]
                row += [f"{found['last_misses']:,}", _share(found)]
            rows.append(row)
    heads = ["", "references", "D1 misses"]
    for size in sizes:
        heads += [f"misses, {format_bytes(size)}", "share"]
    return table(heads, rows)
