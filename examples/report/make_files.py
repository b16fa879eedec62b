"""Write the three files of the report for seeded weights and images, with a reference output.

    python examples/report/make_files.py --folder build/report

`params.txt` takes 87 MB. The reference is computed in float64 by `reference.py`, or with
`--reference onnxruntime` in float32 as in the report.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.networks.images import random_images
from examples.report.formats import (
    INPUT_FILE,
    OUTPUT_FILE,
    PARAMS_FILE,
    REPORT,
    SMALL,
    Array,
    Topology,
    fold_batch_norm,
    weights,
    write_rows,
)
from examples.report.reference import forward


def _reference(params: dict[str, Array], topology: Topology, images: Array, engine: str) -> Array:
    if engine == "float64":
        return np.stack([forward(params, topology, image) for image in images])
    import onnxruntime  # only for whoever asks for it

    model = topology.model(params=params).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.concatenate(
        [session.run(None, {"input": image[None].astype(np.float32)})[0] for image in images]
    ).astype(np.float64)


def make_files(
    folder: Path,
    topology: Topology = REPORT,
    *,
    images: int = 10,
    seed: int = 0,
    engine: str = "float64",
) -> dict[str, int]:
    """Write `params.txt`, `mobilenetInput.txt` and `mobilenetOutput.txt`; return the bytes of each.

    Args:
        folder: where to; made if it is missing.
        topology: the network.
        images: how many.
        seed: of weights and images.
        engine: what computes the reference: "float64" or "onnxruntime" (float32).
    """
    folder.mkdir(parents=True, exist_ok=True)
    params = fold_batch_norm(weights(topology.model(folded=False, seed=seed)))
    params = {name: params[name] for name in topology.layout()}
    pictures = random_images((images, *topology.input_shape), seed).astype(np.float64)
    outputs = _reference(params, topology, pictures, engine)
    return {
        PARAMS_FILE: write_rows(folder / PARAMS_FILE, params.values()),
        INPUT_FILE: write_rows(folder / INPUT_FILE, pictures),
        OUTPUT_FILE: write_rows(folder / OUTPUT_FILE, outputs),
    }


def main(arguments: list[str] | None = None) -> int:
    """Write the files that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write the text files of the MobileNetV2 report.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reference", choices=("float64", "onnxruntime"), default="float64")
    parser.add_argument(
        "--small", action="store_true", help="a cut-down network, to try the format"
    )
    options = parser.parse_args(arguments)
    topology = SMALL if options.small else REPORT
    sizes = make_files(
        options.folder, topology, images=options.images, seed=options.seed, engine=options.reference
    )
    for name, size_bytes in sizes.items():
        print(f"{options.folder / name}: {size_bytes / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
