"""What the benchmarks share: every engine there is, the models, and options.

The machinery itself (processes, rounds, ratios, tables) is `leanconv.cli.engines`, because
`leanconv bench` needs it where this folder is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from leanconv.cli.engines.catalogue import ENGINES, Engine
from leanconv.errors import InputError, LeanConvError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MODELS = ROOT / "models"

ALL_ENGINES: tuple[Engine, ...] = (
    *ENGINES,
    Engine(
        "xnnpack", HERE / "engines" / "engine_xnnpack.py", ("torch", "executorch", "onnx"), (HERE,)
    ),
    Engine("torch", HERE / "engines" / "engine_torch.py", ("torch", "onnx"), (HERE,)),
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


def script(body: Callable[[], int]) -> None:
    """Run the body of a benchmark; a `LeanConvError` is one line and exit code 1."""
    try:
        code = body()
    except LeanConvError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        code = 1
    sys.exit(code)
