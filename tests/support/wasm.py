"""Compiled networks of WebAssembly, run by node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support.libraries import Feed, dtype_of
from support.onnx_models import Array

NODE = shutil.which("node")
SCRIPT = Path(__file__).with_name("run_wasm.mjs")


def run_module(file: Path, feed: Mapping[str, Array], times: int = 2) -> tuple[Feed, Any]:
    """Return the outputs of a module, and what it printed.

    Args:
        file: the module; its JSON lies beside it.
        feed: inputs.
        times: how often it runs.
    """
    facts = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    shapes = {name: list(array.shape) for name, array in feed.items()}
    run = next(
        run
        for run in facts["runs"]
        if {each["name"]: each["shape"] for each in run["inputs"]} == shapes
    )
    files = [file.with_suffix(f".in{number}") for number in range(len(run["inputs"]))]
    for place, each in zip(files, run["inputs"], strict=True):
        np.ascontiguousarray(feed[each["name"]]).tofile(place)
    results = [file.with_suffix(f".out{number}") for number in range(len(run["outputs"]))]
    job = {
        "module": str(file),
        "name": facts["name"],
        "run": run["function"],
        "weights": [str(file.with_suffix(".weights"))] if facts["weights_file"] else [],
        "inputs": [str(each) for each in files],
        "outputs": [
            [str(place), each["bytes"]] for place, each in zip(results, run["outputs"], strict=True)
        ],
        "times": times,
    }
    script = file.with_suffix(".job")
    script.write_text(json.dumps(job), encoding="utf-8")
    assert NODE
    found = subprocess.run(
        [NODE, str(SCRIPT), str(script)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    outputs = {
        each["name"]: np.fromfile(place, dtype_of(each)).reshape(each["shape"])
        for place, each in zip(results, run["outputs"], strict=True)
    }
    return outputs, json.loads(found.stdout)
