"""Convolutions of any groups and channels against the best of torch and ONNX Runtime.

    python benchmarks/channels.py                 all of them, about ten minutes
    python benchmarks/channels.py 1d g8 --out F   those whose names have each part; keeps the JSON

Each engine has a process of its own with one thread, and they are measured in turns by the CPU time
of that thread, so that other work on the machine matters little. leanconv and ONNX Runtime get the
same file; torch calls its function. Channels last (`nhwc`) are leanconv's `plan_conv2d` and torch
alone, as ONNX has no such convolution. Answers are compared with float64 before.

A ratio is the time of the faster other engine over leanconv's, of the same round; what is printed
is the median of rounds. Exit code 3: one is below `--least`, or an answer is wrong.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from channel_cases import Case, cases
from harness import Peers, Run, add_record_option, script, write_results
from leanconv.cli import EXIT_NOT_MET
from leanconv.cli.engines import machine

_TOLERANCE = 1e-4


def arrays(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Input (1, C, *size), weights (K, C / groups, *kernel) and bias (K,) of a case."""
    draw = np.random.default_rng(0)
    w = draw.standard_normal(case.w_shape, np.float32)
    w /= np.sqrt(np.float32(w[0].size))
    return (
        draw.standard_normal(case.x_shape, np.float32),
        w,
        draw.standard_normal(case.w_shape[0], np.float32),
    )


def _model(case: Case) -> bytes:
    _, w, bias = arrays(case)
    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        name="conv",
        group=case.groups,
        strides=case.stride,
        pads=[case.pad] * 2 * len(case.size),
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, case.x_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(bias, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def _leanconv(case: Case) -> tuple[Run, str]:
    import leanconv as lc

    x, w, bias = arrays(case)
    if case.channels_last:
        last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        plan = lc.plan_conv2d(
            last.shape, w, bias, case.stride, case.pad, groups=case.groups, layout="NHWC", threads=1
        )
        return lambda: np.moveaxis(plan(last), -1, 1), plan.algorithm
    net = lc.load(_model(case), threads=1)
    chosen = "+".join(str(step.algorithm) for step in net.profile(x))
    return lambda: net(x), chosen


def _onnxruntime(case: Case) -> tuple[Run, str]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        _model(case), options, providers=["CPUExecutionProvider"]
    )
    x, *_ = arrays(case)
    return lambda: session.run(None, {"x": x})[0], onnxruntime.__version__


def _torch(case: Case) -> tuple[Run, str]:
    import torch

    torch.set_num_threads(1)
    convolution = (torch.conv1d, torch.conv2d, torch.conv3d)[len(case.size) - 1]
    x, w, bias = map(torch.from_numpy, arrays(case))
    if case.channels_last:
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))

    def run() -> np.ndarray:
        with torch.inference_mode():
            y = convolution(x, w, bias, case.stride, case.pad, 1, case.groups)
            found: np.ndarray = y.numpy()
            return found

    return run, torch.__version__


_ENGINES: dict[str, Callable[[Case], tuple[Run, str]]] = {
    "leanconv": _leanconv,
    "onnxruntime": _onnxruntime,
    "torch": _torch,
}


def _in_float64(case: Case) -> np.ndarray:
    """The exact output, (1, K, *out), by products of windows."""
    x, w, bias = (a.astype(np.float64) for a in arrays(case))
    x = np.pad(x, ((0, 0), (0, 0), *((case.pad, case.pad),) * len(case.size)))
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x, case.kernel, axes)
    steps = [slice(None, None, stride) for stride in case.stride]
    windows = np.moveaxis(windows[0], 0, -1)[tuple(steps)]
    y = []
    for group in range(case.groups):
        part = windows[..., group * case.inputs : (group + 1) * case.inputs]
        taps = tuple(range(len(axes), part.ndim - 1))
        kept = w[group * case.outputs : (group + 1) * case.outputs]
        y.append(np.tensordot(kept, part, (range(1, kept.ndim), (part.ndim - 1, *taps))))
    found: np.ndarray = np.concatenate(y)[None] + bias.reshape(1, -1, *[1] * len(axes))
    return found


def measure(case: Case, peers: Peers, rounds: int, seconds: float) -> Any:
    """One row: times in seconds, ratio, what each engine said, errors."""
    engines = [k for k in _ENGINES if not (case.channels_last and k == "onnxruntime")]
    exact = _in_float64(case)
    row: dict[str, Any] = {"name": case.name, "said": {}, "errors": {}}
    for name in engines:
        row["said"][name], y = peers.prepare(name, case)
        row["errors"][name] = float(np.abs(y - exact).max() / np.abs(exact).max())
    times = peers.times(engines, rounds, seconds)
    row["seconds"] = {name: statistics.median(of) for name, of in times.items()}
    ours = times.pop("leanconv")
    row["ratio"] = statistics.median(
        min(others) / own for own, *others in zip(ours, *times.values(), strict=True)
    )
    return row


def line(row: Any) -> str:
    """A row of the table."""
    times = "  ".join(f"{row['seconds'].get(name, 0) * 1e3:9.3f}" for name in _ENGINES)
    wrong = "  WRONG" if row["errors"]["leanconv"] > _TOLERANCE else ""
    return f"{row['name']:42} {times}  {row['ratio']:6.2f}  {row['said']['leanconv']}{wrong}"


def page(document: Any) -> str:
    """The table as a page."""
    rows = "\n".join(
        f"| {row['name']} | {row['said']['leanconv']} | "
        + " | ".join(f"{row['seconds'].get(name, 0) * 1e3:.3f}" for name in _ENGINES)
        + f" | {row['ratio']:.2f} |"
        for row in sorted(document["rows"], key=lambda row: row["ratio"])
    )
    return (
        "# Groups, channels, taps and strides\n\n"
        "One thread; milliseconds of its CPU time; the ratio is the faster other engine's over "
        "leanconv's, least first.\n\n"
        f"| layer | algorithm | {' | '.join(_ENGINES)} | ratio |\n"
        f"|---|---|---|---|---|---|\n{rows}\n"
    )


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="of names such as 1d or g8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.08, help="of a turn")
    parser.add_argument("--least", type=float, default=0.9, help="the least ratio that is well")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    add_record_option(parser)
    options = parser.parse_args()
    chosen = [case for case in cases() if all(part in case.name for part in options.parts)]
    peers = Peers(_ENGINES)
    print(f"{'layer':42} " + "  ".join(f"{name:>9.9}" for name in _ENGINES) + "   ratio")
    rows = []
    for case in chosen:
        rows.append(measure(case, peers, options.rounds, options.seconds))
        print(line(rows[-1]), flush=True)
    peers.stop()
    ratios = [row["ratio"] for row in rows]
    bad = [row for row in rows if row["ratio"] < options.least]
    wrong = [row for row in rows if row["errors"]["leanconv"] > _TOLERANCE]
    mean = statistics.geometric_mean(ratios)
    print(f"{len(rows)} layers: {mean:.2f} on average, least {min(ratios):.2f}, {len(bad)} below")
    effort = {"threads": 1, "rounds": options.rounds, "seconds": options.seconds}
    document = {"machine": machine.describe().to_json(), "effort": effort, "rows": rows}
    write_results(document, options.out, page)
    return EXIT_NOT_MET if bad or wrong else 0


if __name__ == "__main__":
    script(main)
