"""The MobileNetV2 report: profiles of every version, its whole run, and its future work."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from math import log2
from typing import Any

import numpy as np
import onnx

import leanconv as lc
from documents.chart import Chart
from documents.figure import Claim, Data, Effort, Figure, Page, Table, ratio, spread
from harness import ROOT
from pages.ladder import CUDNN, DOCUMENT

sys.path.insert(0, str(ROOT))

import itertools

from examples.report.formats import REPORT, SMALL, Topology, weights
from ladder.forward import Forward, Spent
from ladder.network import FUTURE, VERSIONS, Version
from leanconv.types import FLOAT64

# The report's kernels, and ours that do the same; shares of a pass of v3.3 on its GPU, in percent.
_V33 = {"1x1": 54.89, "dense": 5.30, "depthwise": 5.28, "convolution": 1.69, "addition": 0.72,
        "global average": 0.13}  # fmt: skip
_LAST = VERSIONS[-1]
_RUNS, _IMAGES = 500, 10


def _topology(effort: Effort) -> Topology:
    return SMALL if effort.quick else REPORT


# -- profiles (figures 3, 5, 7, 9, 11, 13) -----------------------------------------------------
def _profile(version: Version, topology: Topology, effort: Effort) -> Data:
    params = weights(topology.model())
    forward = Forward(topology, params, version, FLOAT64, effort.threads)
    image = np.random.default_rng(0).standard_normal(topology.input_shape)
    forward(image)
    spent = Spent()
    forward.spent = spent
    for _ in range(2 if effort.quick or version.padded_copies else 20):
        forward(image)
    kernels = {
        label: {
            "calls": len(times) // spent.passes,
            "mean_ns": statistics.fmean(times),
            "least_ns": min(times),
            "most_ns": max(times),
            "total_ns": sum(times) / spent.passes,
        }
        for label, times in spent.by_kernel.items()
    }
    return {
        "name": version.name,
        "change": version.change,
        "ns": spent.total_ns / spent.passes,
        "kernels": kernels,
        "allocated_bytes": spent.allocated_bytes // spent.passes,
        "sums_bytes": _sums_bytes(forward),
    }


def _sums_bytes(forward: Forward) -> int:
    """Bytes of results in between that the future step keeps."""
    planes = [p for name, p in forward.planes.items() if name.endswith(".sums")]
    return sum(plane.elements for plane in planes) * forward.dtype.bytes


def _measure_profile(effort: Effort) -> Data:
    topology = _topology(effort)
    return {"versions": [_profile(version, topology, effort) for version in VERSIONS]}


def _table(version: Data) -> Table:
    rows = []
    ordered = sorted(version["kernels"].items(), key=lambda item: -item[1]["total_ns"])
    for label, k in ordered:
        share = 100 * k["total_ns"] / version["ns"]
        times = (k["total_ns"] / 1e6, k["mean_ns"] / 1e3, k["least_ns"] / 1e3, k["most_ns"] / 1e3)
        total, mean, least, most = (f"{t:.3g}" for t in times)
        rows.append([label, f"{share:.1f} %", total, f"{k['calls']:,}", mean, least, most])
    host = version["ns"] - sum(k["total_ns"] for k in version["kernels"].values())
    rows.append(
        ["host", f"{100 * host / version['ns']:.1f} %", f"{host / 1e6:.3g}", "", "", "", ""]
    )
    heads = ["", "share", "ms a pass", "calls", "mean, us", "least", "most"]
    text = f"**{version['name']}**: {version['change']}. {version['ns'] / 1e6:.2f} ms an image."
    return Table(text, heads, rows)


def _show_profile(data: Data) -> Page:
    versions = data["versions"]
    claims = []
    for before, after in itertools.pairwise(versions):
        said = DOCUMENT[before["name"]] / DOCUMENT[after["name"]]
        ours = before["ns"] / after["ns"]
        claims.append(
            Claim(
                f"{before['name']} over {after['name']}",
                f"{said:.2f}",
                f"{ours:.2f}",
                ratio(ours, said),
                "a GPU there: launches, copies and allocations weigh more than arithmetic",
            )
        )
    copies = versions[0]["kernels"].get("copies of rows")
    if copies:
        claims.append(
            Claim(
                "copies of rows of one pass of v1",
                "259,926, 25 % of the time",
                f"{copies['calls']:,} launches of all rows each, "
                f"{100 * copies['total_ns'] / versions[0]['ns']:.0f} %",
                "",
                "one launch copies all rows of a layer; the rows are as many (tested)",
            )
        )
    last = versions[-1]
    for label, said in _V33.items():
        if label in last["kernels"]:
            share = 100 * last["kernels"][label]["total_ns"] / last["ns"]
            claims.append(
                Claim(f"v3.3, share of {label}", f"{said} %", f"{share:.1f} %", ratio(share, said),
                      "28 % of the report's pass are copies of the image's rows to the device")
            )  # fmt: skip
    labels = list(dict.fromkeys(k for v in versions for k in v["kernels"]))
    chart = Chart(
        "",
        "Milliseconds of one image, by kernel",
        [v["name"] for v in versions],
        [
            (
                k,
                [
                    v["kernels"][k]["total_ns"] / 1e6 if k in v["kernels"] else None
                    for v in versions
                ],
            )
            for k in labels
        ],
        log=True,
    )
    return Page([_table(v) for v in versions], claims, [chart])


# -- the future step ---------------------------------------------------------------------------
def _measure_future(effort: Effort) -> Data:
    topology = _topology(effort)
    return {"versions": [_profile(version, topology, effort) for version in (_LAST, FUTURE)]}


def _show_future(data: Data) -> Page:
    before, after = data["versions"]
    ours = before["ns"] / after["ns"]
    pointwise = sum(after["kernels"][k]["total_ns"] for k in ("1x1, parts", "1x1, tree"))
    alone = before["kernels"]["1x1"]["total_ns"] / pointwise
    # C·m + n against m + n + log2 C·a + n, in units of one product, for a mean of 200 channels.
    model = (200 + 1) / (1 + 1 + log2(200) + 1)
    claims = [
        Claim(
            "v3.3 over v3.4, whole pass; its 1x1 layers alone",
            f"up to {model:.0f} on a layer of 200 channels (C·m + n over m + n + log C·a + n)",
            f"{ours:.2f}; {alone:.2f}",
            ratio(alone, model),
            "its model has a thread for each channel; two cores are busy with pixels alone, and "
            "parts only add stores and loads of sums",
        ),
        Claim(
            "memory for results in between",
            "considerable",
            f"{after['sums_bytes'] / 2**20:.0f} MiB",
            "",
            f"{FUTURE.parts} sums of each output of every 1x1 layer",
        ),
    ]
    return Page([_table(before), _table(after)], claims)


# -- the whole run -----------------------------------------------------------------------------
def _measure_run(effort: Effort) -> Data:
    topology = _topology(effort)
    model = topology.model()
    images, runs = (2, 3) if effort.quick else (_IMAGES, _RUNS)
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((images, 1, *topology.input_shape)).astype(np.float32)
    exact = lc.load(model, dtype="float64", threads=effort.threads)
    right = [exact(x.astype(np.float64)) for x in inputs]
    found: Data = {"images": images, "iterations": runs, "torch": _torch_ns(model, inputs, effort)}
    for dtype in ("float32", "float64"):
        network = lc.load(model, dtype=dtype, threads=effort.threads)
        given = [x.astype(dtype) for x in inputs]
        differences = [
            float(np.abs(network(x) - y.astype(np.float32)).max())
            for x, y in zip(given, right, strict=True)
        ]
        means = [_mean_ns(partial(network, x), runs) for x in given]
        found[dtype] = {"differences": differences, "mean_ns": means, "spread": spread(means)}
    return found


def _torch_ns(model: onnx.ModelProto, inputs: np.ndarray, effort: Effort) -> Data:
    """Nanoseconds of each image in PyTorch, by type; nothing where it is not installed."""
    try:
        import torch

        from engines.onnx_to_torch import OnnxModule
    except ImportError:
        return {}
    torch.set_num_threads(effort.threads)
    found = {}
    for dtype in ("float32", "float64"):
        module = OnnxModule(model.graph).eval().to(getattr(torch, dtype))
        given = [torch.from_numpy(x.astype(dtype)) for x in inputs]
        with torch.inference_mode():
            run = torch.jit.optimize_for_inference(torch.jit.trace(module, (given[0],)))
            for _ in range(3):
                run(given[0])
            found[dtype] = [_mean_ns(partial(run, x), 3 if effort.quick else 50) for x in given]
    return {"version": torch.__version__, "mean_ns": found}


def _mean_ns(run: Callable[[], Any], runs: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(runs):
        run()
    return (time.perf_counter_ns() - begin) / runs


def _show_run(data: Data) -> Page:
    rows = []
    for number in range(data["images"]):
        cells = [str(number)]
        for dtype in ("float32", "float64"):
            one = data[dtype]
            cells += [f"{one['differences'][number]:.2e}", f"{one['mean_ns'][number] / 1e6:.3f}"]
        rows.append(cells)
    heads = ["image", "float32: largest difference", "ms", "float64: largest difference", "ms"]
    text = (
        f"{data['images']} images, {data['iterations']} runs of each. The reference is the "
        "engine's float64, rounded to float32, as the report's is in float32."
    )
    claims = []
    for dtype in ("float64", "float32"):
        mean = statistics.fmean(data[dtype]["mean_ns"]) / 1e6
        claims.append(
            Claim(f"average time, {dtype}", f"{DOCUMENT['v3.3']} ms (V100, float64)",
                  f"{mean:.3f} ms", ratio(mean, DOCUMENT["v3.3"]), "two cores of a CPU here")
        )  # fmt: skip
        claims += _beside_torch(dtype, mean, data["torch"])
    most = max(data["float32"]["differences"])
    claims += [
        Claim("largest difference, float32", "at most 1e-5 (5.1e-6 to 8.2e-6)", f"{most:.1e}",
              ratio(most, 1e-5), "random weights: logits are larger than a trained network's"),
    ]  # fmt: skip
    return Page([Table(text, heads, rows)], claims)


def _beside_torch(dtype: str, ours_ms: float, torch: Data) -> list[Claim]:
    """The vendor's library of a CPU, where the report has that of a GPU."""
    if not torch:
        return []
    mean = statistics.fmean(torch["mean_ns"][dtype]) / 1e6
    said = CUDNN / DOCUMENT["v3.3"]
    return [
        Claim(f"a library's time over ours, {dtype}", f"{said:.1f} (cuDNN {CUDNN} ms over v3.3)",
              f"{mean / ours_ms:.2f} (PyTorch {torch['version']}, {mean:.2f} ms, 50 runs of each)",
              ratio(mean / ours_ms, said), "the report makes cuDNN's descriptors and looks for its "
              "algorithms anew in every pass; PyTorch is traced and optimised once")
    ]  # fmt: skip


FIGURES = (
    Figure("report-profile", "MobileNetV2 report, figures 3 to 13", "Profiles of every version",
           _measure_profile, _show_profile, minutes=2),
    Figure("report-future", "MobileNetV2 report, section 5.2", "Channels in parts, and a tree",
           _measure_future, _show_future, minutes=0.5),
    Figure("report-run", "MobileNetV2 report, section 4", "Ten images, 500 runs of each",
           _measure_run, _show_run, minutes=3),
)  # fmt: skip
