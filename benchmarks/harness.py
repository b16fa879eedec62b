"""What the benchmarks share: every engine there is, the models, and options.

The machinery itself (processes, rounds, ratios, tables) is `leanconv.cli.engines`, because
`leanconv bench` needs it where this folder is not.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from leanconv.cli.common import UsageError
from leanconv.cli.engines import machine
from leanconv.cli.engines.catalogue import ENGINES, Engine
from leanconv.cli.exit_codes import EXIT_USAGE, EXIT_USER_ERROR
from leanconv.errors import InputError, LeanConvError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MODELS = ROOT / "models"
_ATTEMPTS = 3  # turns taken again because the cores turned out to be shared
Document = dict[str, Any]
T = TypeVar("T")

ALL_ENGINES: tuple[Engine, ...] = (
    *ENGINES,
    Engine(
        "xnnpack", HERE / "engines" / "engine_xnnpack.py", ("torch", "executorch", "onnx"), (HERE,)
    ),
    Engine("torch", HERE / "engines" / "engine_torch.py", ("torch", "onnx"), (HERE,)),
)
# Single convolutions: leanconv by `plan_conv2d`, and engines that are told of one layer by hand.
LAYER_ENGINES: tuple[Engine, ...] = (
    Engine(
        "leanconv",
        HERE / "engines" / "engine_plan.py",
        ("numpy", "llvmlite"),
        (ROOT / "src",),
    ),
    *ALL_ENGINES[1:],
    Engine(
        "torch-nhwc",
        HERE / "engines" / "engine_torch_channels_last.py",
        ("torch", "onnx"),
        (HERE,),
    ),
    Engine("ncnn", HERE / "engines" / "engine_ncnn.py", ("ncnn", "onnx"), (HERE,)),
    Engine("mnn", HERE / "engines" / "engine_mnn.py", ("MNN", "_tools"), (HERE,)),
)


def model_file(name: str) -> Path:
    """Return `models/NAME.onnx`, built by `examples/networks/build.py` if it is not there.

    Raises:
        InputError: there is no such network to build.
    """
    file = MODELS / f"{name}.onnx"
    if not file.exists():
        sys.path.insert(0, str(ROOT))
        from examples.networks import NETWORKS
        from examples.networks.build import save

        MODELS.mkdir(exist_ok=True)
        if name not in NETWORKS:
            known = ", ".join(sorted(NETWORKS))
            raise InputError(f"network {name!r} is not known; expected one of {known}")
        save(NETWORKS[name](), file)
    return file


@dataclass
class Patience:
    """Waiting for cores of one's own, bounded over a whole benchmark.

    Attributes:
        threads: threads that are to have one each.
        left_s: seconds that may still be spent on waiting, and on turns taken again.
    """

    threads: int
    left_s: float = 180.0

    def undisturbed(self, take: Callable[[], T]) -> tuple[T, bool]:
        """Take a measurement while the threads have their cores, as far as one can see.

        Returns:
            The measurement, and whether they had.
        """
        for attempt in range(_ATTEMPTS):
            start = time.monotonic()
            before = machine.wait_for_cores(self.threads, max(0.0, min(2.0, self.left_s)))
            waited = time.monotonic() - start
            taken = take()
            alone = before and machine.wait_for_cores(self.threads, patience_s=0.0)
            self.left_s -= waited if attempt == 0 else time.monotonic() - start
            if alone or self.left_s <= 0:
                break
        return taken, alone


def effort(options: argparse.Namespace, *names: str) -> Document:
    """What a result's `effort` says: the options that decide how much was measured."""
    return {name: getattr(options, name) for name in names or ("threads", "rounds", "seconds")}


def results_folder(cpu: str) -> Path:
    """The folder in docs/results of what was measured on one kind of CPU.

    Args:
        cpu: maker and model, as `machine.describe` names them: "AMD EPYC (family/model 25/17)"
            has the folder amd-epyc-25-17.
    """
    named = re.sub(r"\((r|tm)\)|@ [\d.]+ghz|family/model|\bcpu\b", " ", cpu.lower())
    return ROOT / "docs" / "results" / "-".join(re.findall(r"[a-z0-9]+", named))


def rewrite_page(results: Path, page: Callable[[Document], str]) -> None:
    """Write the page of earlier results again, beside their JSON."""
    document = json.loads(results.read_text(encoding="utf-8"))
    results.with_suffix(".md").write_text(page(document), encoding="utf-8")


def write_results(
    document: Document, out: Path | None, results: Path, page: Callable[[Document], str]
) -> None:
    """Write a benchmark's JSON where it is wanted; its page as well where results stand for good.

    Args:
        document: what was measured.
        out: where the JSON goes, None for nowhere.
        results: the file in docs/results; its page stands beside it.
        page: makes the page.
    """
    if out is not None:
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if out == results:
        rewrite_page(results, page)


def script(body: Callable[[], int]) -> None:
    """Run the body of a benchmark; a `LeanConvError` is one line, and codes are the commands'."""
    try:
        code = body()
    except LeanConvError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_USER_ERROR
    sys.exit(code)
