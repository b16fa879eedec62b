"""The page of `report_ladder.py`: the report's steps on a V100, ours, and what they mean here."""

from __future__ import annotations

from typing import Any

from pages.tables import table
from pages.wrapping import wrapped

# Milliseconds of an image on a V100, float64, 244 x 244; "v1" and "v2.1" as the text has them.
DOCUMENT = {
    "v1": 2278.53,
    "v2.1": 1312.24,
    "v2.2": 27.51,
    "v3.1": 21.63,
    "v3.2": 10.60,
    "v3.3": 7.78,
}
CUDNN = 116.48
_PAGE = 4096  # bytes that the system hands out and zeroes at a time

Row = dict[str, Any]


def page(document: dict[str, Any]) -> str:
    """Write the page of a result."""
    machine, effort = document["machine"], document["effort"]
    lines = [
        "# The ladder of the MobileNetV2 report",
        "",
        "Written by `python benchmarks/report_ladder.py`, which says how it measures. "
        f"{machine['cpu']}, {machine['system']}, Python {machine['python']}, "
        f"{machine['time_utc'][:10]}, commit {machine['commit'] or 'unknown'}; "
        f"{effort['threads']} threads, {effort['images']} images "
        f"one by one, {effort['rounds']} rounds. {document['busy_cpus_before']} CPUs were busy "
        "before.",
        "",
        "A CUDA thread is an item, a warp a vector of items (`scalar`: one item, a plain loop), a "
        "block a piece of work that the threads claim, a launch a call of the runtime. Copies are "
        "those that v1 and v2.1 make of every layer's input, row by row; host is the rest: "
        "allocation, and Python between the launches. Milliseconds of one image.",
        "",
    ]
    for setting in document["settings"]:
        lines += _setting(setting)
    lines += _accounting(*document["settings"])
    return wrapped("\n".join(lines).rstrip())


def _setting(setting: Row) -> list[str]:
    rows, before = [], None
    for v in setting["versions"]:
        said = DOCUMENT[v["name"]]
        rows.append(
            [
                v["name"],
                v["change"],
                f"{said:.2f}",
                _factor(before, v, lambda x: DOCUMENT[x["name"]]),
                f"{v['ms']:.1f}",
                _factor(before, v, lambda x: x["ms"]),
                *(f"{v[key]:.1f}" for key in ("copies_ms", "kernels_ms", "host_ms")),
                f"{v['scalar_ms']:.0f}",
                _factor(before, v, lambda x: x["scalar_ms"]),
            ]
        )
        before = v
    engine, last = setting["engine"]["ms"], setting["versions"][-1]
    rows.append(
        [
            "leanconv",
            "the normal engine (the report's last row is cuDNN)",
            f"{CUDNN:.2f}",
            "",
            f"{engine:.1f}",
            f"{last['ms'] / engine:.2f}",
            *[""] * 3,
            "",
            f"{last['scalar_ms'] / engine:.2f}",
        ]
    )
    heads = ["step", "change", "V100", "times", "ours", "times"]
    heads += ["copies", "kernels", "host", "scalar", "times"]
    errors = [v["error"] for v in setting["versions"]]
    size = setting["image"]
    return [
        f"## {setting['dtype']}, {size} x {size}",
        "",
        *table(heads, rows),
        "",
        f"Answers differ from the engine's by at most {max(errors):.1e} of the largest logit. "
        "(The V100's numbers are of float64 at 244.)",
        "",
    ]


def _factor(before: Row | None, now: Row, ms: Any) -> str:
    return "" if before is None else f"{ms(before) / ms(now):.2f}"


def _accounting(setting: Row, other: Row) -> list[str]:
    v, single = ({row["name"]: row for row in s["versions"]} for s in (setting, other))
    tiles, tiles_single = (x["v3.1"]["ms"] / x["v3.2"]["ms"] for x in (v, single))
    copies = v["v2.1"]["row_copies"]
    gpu_us = (DOCUMENT["v2.1"] - DOCUMENT["v2.2"]) / (copies - v["v2.2"]["row_copies"]) * 1e3
    ours_ns = (v["v2.1"]["copies_ms"] - v["v2.2"]["copies_ms"]) / copies * 1e6
    pages = v["v2.2"]["allocated_bytes"] / _PAGE
    fault_ns = (v["v2.2"]["ms"] - v["v3.1"]["ms"]) / pages * 1e6
    rows = [
        [
            "v1",
            "Every pixel has a thread that computes all channels: on the deep layers, of 8 x 8 to "
            "16 x 16 pixels, one block of 1024 threads, and most of the GPU idle. Here a block is "
            "one piece of work, so that one of two cores does these layers.",
        ],
        [
            "v2.1",
            "A thread for each pixel and channel: enough of them for the GPU, enough pieces for "
            f"both cores. Kernels went from {v['v1']['kernels_ms']:.0f} to "
            f"{v['v2.1']['kernels_ms']:.0f} ms; more cannot be had from two cores.",
        ],
        [
            "v2.2",
            f"The report's largest step is {copies:,} copies of a row (the stem's 3 x 244, every "
            f"other layer's, the classifier's 1280, ten additions), {gpu_us:.1f} us each on the "
            f"GPU: the driver's call, not the bytes. A row is copied in {ours_ns:.0f} ns here, so "
            f"that the step is worth its copies and no more. {v['v2.2']['row_copies']} rows "
            "remain, the image's own.",
        ],
        [
            "v3.1",
            f"cudaMalloc becomes fresh memory: {v['v2.2']['allocated_bytes'] / 2**20:.0f} MiB for "
            f"an image, whose pages are zeroed when touched, {fault_ns:.0f} ns a page of 4 KiB.",
        ],
        [
            "v3.2",
            "In rows of 32 threads an 8 x 8 map leaves 24 of a warp's 32 lanes idle, in blocks of "
            "8 x 8 none. A vector has 8 items in float64, which such a map fills either way, and "
            "16 in float32, half of them idle on 7 and 8 columns in rows of 32: the step is worth "
            f"{tiles:.2f} in float64 and {tiles_single:.2f} in float32.",
        ],
        [
            "v3.3",
            "No loops over a single tap around each product. An item still is one chain of "
            "multiply-adds that wait for each other, each with two loads.",
        ],
        [
            "leanconv",
            "A register tile of outputs shares every load and keeps the multiply-adds busy; "
            "additions and clips are part of the convolutions; one native call for the whole "
            "network.",
        ],
    ]
    return ["## What the steps mean on a CPU", "", *table(["step", "accounting"], rows)]
