"""`leanconv run MODEL BIG --tiled --out OUT`: an image of any size, window by window.

Images are `.npy` files, mapped, and Zarr arrays (with the package zarr); so are results. Of a run
that was killed, the same command goes on: `OUT.tiles` says which windows are finished.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.cli.common import UsageError, load_options
from leanconv.cli.exit_codes import EXIT_OK
from leanconv.cli.output import print_json, print_text, progress
from leanconv.errors import InputError, MissingExtraError
from leanconv.files import refuse_without_folder
from leanconv.units import shape_text

if TYPE_CHECKING:
    from leanconv.api.tile_plan import TilePlan


def add_tile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of images larger than memory."""
    group = parser.add_argument_group("large images", "run window by window, in bounded memory")
    group.add_argument(
        "--tiled",
        action="store_true",
        help="read the image (.npy or .zarr) window by window within --memory-limit",
    )
    group.add_argument("--out", metavar="FILE", help="where the result goes: .npy or .zarr")


def execute_tiled(options: argparse.Namespace) -> int:
    """Run one image in tiles."""
    import leanconv

    if len(options.images) != 1 or options.out is None:
        raise UsageError(
            f"--tiled takes one image and --out; got {len(options.images)} images and "
            f"--out {options.out}: leanconv run MODEL big.npy --tiled --out result.npy"
        )
    if options.save:
        raise UsageError("--save goes without --tiled; expected --out")
    (source,), out = options.images, options.out
    settings = load_options(options)
    limit = settings.pop("memory_limit")
    with progress(f"loading {options.model}") as shown:
        tiled = leanconv.tiled(leanconv.load(options.model, **settings), memory_limit=limit)
        if len(tiled.inputs) != 1:
            raise InputError(
                f"the network takes {len(tiled.inputs)} inputs; expected one for --tiled: call "
                "leanconv.tiled from Python"
            )
        x = _opened(source)
        if Path(out).exists() and Path(out).samefile(source):
            raise UsageError(f"--out is the image, {source}; expected another name")
        plan = tiled.bind(tuple(x.shape))
        if len(plan.windows.whole.outputs) != 1:
            raise InputError(
                f"the network has the outputs {', '.join(plan.windows.whole.outputs)}; expected "
                "one for --tiled: call leanconv.tiled from Python"
            )
        journal = Path(f"{out.rstrip('/')}.tiles")
        y = _made(out, plan, journal.exists())

        def say(stage: str, done: int, total: int) -> None:
            shown.say(f"{stage}, {done} of {total}")

        tiled(x, out=y, journal=journal, progress=say)
    if options.json:
        print_json(_report(options, plan))
    else:
        print_text(f"{plan.explain()}\nwritten to {out}", options.wide)
    return EXIT_OK


def _report(options: argparse.Namespace, plan: TilePlan) -> dict[str, Any]:
    return {
        "model": options.model,
        "image": options.images[0],
        "out": options.out,
        "tiles": plan.tiles,
        "tile_shapes": plan.tile_shapes,
        "overlap": plan.windows.overlap,
        "memory_predicted_bytes": plan.memory_bytes,
        "predicted_ns": plan.predicted_ns,
    }


def _opened(file: str) -> Any:
    """An image to read in parts."""
    from leanconv.api.tile_arrays import mapped_array

    kind = _kind(file)
    if kind == ".npy":
        return mapped_array(Path(file))
    if kind == ".zarr":
        return _zarr().open_array(file, mode="r")
    raise InputError(
        f"{file!r} cannot be read in parts; expected a file that ends in .npy, or a folder that "
        "ends in .zarr"
    )


def _made(file: str, plan: TilePlan, again: bool) -> Any:
    """What a result is written to: a new array, or that of a run which goes on."""
    from leanconv.api.tile_arrays import mapped_array

    (name,) = plan.windows.whole.outputs
    held = plan.windows.whole.types[name]
    dtype, kind = np.dtype(held.dtype.numpy), _kind(file)
    if kind not in (".npy", ".zarr"):
        raise UsageError(f"--out is {file!r}; expected a name that ends in .npy or .zarr")
    refuse_without_folder(file)
    if again and not Path(file).exists():
        raise InputError(
            f"the journal {file}.tiles says which parts of {file} are finished, which is not "
            "there: delete the journal to begin anew"
        )
    if kind == ".npy":
        if not again:
            return np.lib.format.open_memmap(file, "w+", dtype, held.shape)
        found = mapped_array(Path(file), writable=True)
    elif again:
        found = _zarr().open_array(file, mode="r+")
    else:
        chunks = tuple(min(n, 512) if axis > 1 else n for axis, n in enumerate(held.shape))
        found = _zarr().create_array(file, shape=held.shape, dtype=dtype, chunks=chunks)
    if again and (tuple(found.shape) != held.shape or np.dtype(found.dtype) != dtype):
        raise InputError(
            f"{file!r} holds {shape_text(tuple(found.shape))} of {found.dtype}, and the journal "
            f"beside it says that a run goes on, whose result is {held}: delete {file}.tiles to "
            "begin anew"
        )
    return found


def _kind(file: str) -> str:
    """How a name ends, in lower case; a Zarr array's is a folder's."""
    return Path(file.rstrip("/")).suffix.lower()


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise MissingExtraError(
            "Zarr arrays need the package zarr, which is not installed; install it with "
            "`pip install 'leanconv[images]'`"
        ) from error
    return zarr
