"""Write a network as an ONNX file.

python examples/networks/build.py mobilenetv2 --out models/mobilenetv2.onnx
python examples/networks/build.py resnet50 --image 160 --batch 8 --width 0.5 --out models/r.onnx
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import onnx

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.networks import NETWORKS


def _image(text: str) -> int | tuple[int, int]:
    """Read `224` or `224x320` (height x width)."""
    sizes = [int(part) for part in text.split("x")]
    if len(sizes) > 2 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a size such as 224 or 224x320")
    return sizes[0] if len(sizes) == 1 else (sizes[0], sizes[1])


def save(model: onnx.ModelProto, path: Path, *, external: bool = False) -> int:
    """Write the model, aside first and then renamed; return the bytes of all files.

    Args:
        model: to write; with `external` its weights are moved out of it.
        path: the file; its folder is made if it is missing.
        external: put the weights into `path` + `.data` beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if external:
        data = path.with_name(path.name + ".data")
        data.unlink(missing_ok=True)
        onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=1024)
        return path.stat().st_size + data.stat().st_size
    aside = path.with_name(path.name + f".{os.getpid()}.part")
    try:
        onnx.save(model, aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path.stat().st_size


def main(arguments: list[str] | None = None) -> int:
    """Build the network that the command line asks for; return 0, or exit with 2."""
    parser = argparse.ArgumentParser(
        description="Write a network with seeded random weights as ONNX."
    )
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--image", type=_image, help="height x width (default: the network's own)")
    parser.add_argument("--batch", type=int, help="images at once (default: symbolic, any number)")
    parser.add_argument("--width", type=float, help="multiplies the channels")
    parser.add_argument("--classes", type=int, help="outputs")
    parser.add_argument("--seed", type=int, help="of the weights (default 0)")
    parser.add_argument("--opset", type=int, help="ONNX operator set, 7 to 22 (default 17)")
    parser.add_argument("--external", action="store_true", help="weights in a file of their own")
    options = parser.parse_args(arguments)

    builder = NETWORKS[options.network]
    wanted: dict[str, Any] = {
        key: getattr(options, key)
        for key in ("image", "batch", "width", "classes", "seed", "opset")
        if getattr(options, key) is not None
    }
    unknown = sorted(set(wanted) - set(inspect.signature(builder).parameters))
    if unknown:
        parser.error(f"{options.network} has no option --{', --'.join(unknown)}")
    try:
        model = builder(**wanted)
    except ValueError as error:
        parser.error(str(error))
    count = len(model.graph.node)
    size_bytes = save(model, options.out, external=options.external)
    print(f"{options.out}: {options.network}, {count} nodes, {size_bytes / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
