"""A network in fewer bytes than its weights have: memory, time and bits, beside weights in memory.

    python benchmarks/stream_weights.py --limit "100 MiB"
    python benchmarks/stream_weights.py MODEL.onnx --limit "20 MiB" --cold --json streamed.json

Without a model it is VGG-16 with random weights (528 MiB). Each measurement is a process of its own
in which another network has run before, so that all modules are there; the peak of resident memory
is that of loading and running, over what the process had then. Kernels are compiled beforehand, in
another process. With `--cold` the file is read from the disk in each run, not from the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness import ROOT, model_file

MIB = 2**20


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Load and run in this process."""
    import leanconv as lc
    from leanconv.codegen.backend import release_llvm_pages

    def load(path: Path, **limits: Any) -> tuple[Any, np.ndarray]:
        net = lc.load(path, threads=options.threads, **limits)
        shape = [extent if isinstance(extent, int) else 1 for extent in net.inputs[0].shape or ()]
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        return net, x

    small, x = load(ROOT / "examples" / "digits" / "digits.onnx", stream_weights=options.streams)
    small(x)
    del small, x
    release_llvm_pages()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = _resident("VmRSS")
    limits = {"memory_limit": options.limit, "stream_weights": True} if options.streams else {}
    begin = time.perf_counter_ns()
    net, x = load(options.model, **limits)
    y = net(x)
    load_ns = time.perf_counter_ns() - begin
    times = []
    for _ in range(options.runs):
        if options.cold:
            _drop_cached(net)
        begin = time.perf_counter_ns()
        net(x)
        times.append(time.perf_counter_ns() - begin)
    np.save(options.out, y)
    plan = net.plan
    return {
        "memory_bytes": plan.memory_bytes,
        "used_bytes": net.used_bytes,
        "arena_bytes": plan.arena_bytes,
        "weight_bytes": plan.weight_bytes,
        "streamed_bytes": plan.streamed_bytes,
        "readings": len(plan.readings),
        "bytes_a_ns": plan.bytes_a_ns if options.streams else None,
        "predicted_ns": plan.predicted_ns,
        "waiting_ns": plan.waiting_ns,
        "load_and_first_run_ns": load_ns,
        "run_ns": times,
        "resident_before_bytes": before,
        "resident_over_bytes": _resident("VmHWM") - before,
        "algorithms": [step.algorithm for step in plan.steps],
    }


def _resident(key: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


def _drop_cached(net: Any) -> None:
    """Let the page cache forget the files that a network reads."""
    for load in net.compiled.network._program._loads:
        os.fsync(load.file._handle)
        os.posix_fadvise(load.file._handle, load.start, load.bytes, os.POSIX_FADV_DONTNEED)


def in_process(options: argparse.Namespace, model: Path, streams: bool, out: Path) -> Any:
    """What a process of its own measures."""
    command = [sys.executable, __file__, str(model), "--child", "--out", str(out)]
    command += ["--threads", str(options.threads), "--runs", str(options.runs)]
    command += ["--limit", options.limit]
    command += ["--streams"] * streams + ["--cold"] * (streams and options.cold)
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def compared(options: argparse.Namespace, model: Path, folder: Path) -> dict[str, Any]:
    """Both ways, each after a process that has compiled what it needs."""
    ways = {"whole": False, "streamed": True}
    found: dict[str, Any] = {}
    for name, streams in ways.items():
        for _ in range(2):
            found[name] = in_process(options, model, streams, folder / f"{name}.npy")
    whole, streamed = (np.load(folder / f"{name}.npy") for name in ways)
    same = bool(np.array_equal(whole, streamed))
    apart = float(np.abs(whole - streamed).max() / np.abs(whole).max())
    return {"model": model.name, "limit": options.limit, "same_bits": same, "apart": apart} | found


def shown(result: dict[str, Any]) -> str:
    """Both ways in lines."""
    lines = [f"{result['model']} within {result['limit']}, {platform.processor()}"]
    for name in ("whole", "streamed"):
        one = result[name]
        lines.append(
            f"{name}: plan {one['memory_bytes'] / MIB:.1f} MiB, allocated "
            f"{one['used_bytes'] / MIB:.1f} MiB, peak of resident memory over the interpreter's "
            f"{one['resident_over_bytes'] / MIB:.1f} MiB; median "
            f"{statistics.median(one['run_ns']) / 1e6:.1f} ms, predicted "
            f"{one['predicted_ns'] / 1e6:.1f} ms, of which waiting {one['waiting_ns'] / 1e6:.1f} ms"
            f"; reads {one['streamed_bytes'] / MIB:.1f} MiB in {one['readings']} pieces"
        )
    lines.append("the same bits" if result["same_bits"] else f"apart by {result['apart']:.1e}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--limit", default="100 MiB")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--cold", action="store_true", help="read from the disk in each run")
    parser.add_argument("--json", type=Path, help="also write a JSON file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--streams", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or model_file("vgg16")
        result = compared(options, model, Path(folder))
    print(shown(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
