"""`leanconv run MODEL --tiled BIG --out OUT`: an image of any size, window by window.

Images are `.npy` files, mapped, TIFF files (with the package tifffile), Zarr arrays and OME-Zarr
images (with the package zarr); so are results. The same command continues a run that was killed:
`OUT.tiles` says which windows are finished.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.cli import EXIT_OK
from leanconv.cli.image_options import OF_PICTURES
from leanconv.cli.options import UsageError, load_options
from leanconv.cli.output import print_json, print_text, progress
from leanconv.errors import InputError
from leanconv.files import refuse_without_folder

_UNHEEDED = (
    *OF_PICTURES,
    *("labels", "top", "repeat", "shape", "value", "tune", "stream_weights", "shared_weights"),
    *("draw", "min_score", "verbose"),
)

if TYPE_CHECKING:
    from leanconv.api.tile_journal import Journal
    from leanconv.api.tile_plan import TilePlan


def add_tile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of images larger than memory."""
    parser.set_defaults(usual=parser.get_default)
    group = parser.add_argument_group("large images", "run window by window, in bounded memory")
    group.add_argument(
        "--tiled",
        action="store_true",
        help="read the image (.npy, .tif, .zarr) window by window within --memory-limit",
    )
    group.add_argument(
        "--out",
        metavar="FILE",
        help="where the result goes, a new file: .npy, .tif, .zarr or .ome.zarr",
    )
    group.add_argument(
        "--axes",
        metavar="AXES",
        help="a letter for each axis of the image, such as YXC (default: what the file says, or "
        "the network's)",
    )
    group.add_argument(
        "--out-axes",
        metavar="AXES",
        help="a letter for each axis of the result (default: TCZYX, as many as there are, in .tif "
        "and .ome.zarr; else the network's)",
    )


def check_untiled(options: argparse.Namespace) -> None:
    """Refuse options of images in tiles where there are none.

    Raises:
        UsageError: naming them.
    """
    given = _given(options, ("out", "axes", "out_axes"))
    if given:
        raise UsageError(
            f"{given} without --tiled; expected it, for an image that is run window by window "
            "(--save keeps what other runs give)"
        )


def _given(options: argparse.Namespace, names: Sequence[str]) -> str:
    """Return which of these options the user has set, as a user writes them."""
    found = [n for n in names if getattr(options, n, None) != options.usual(n)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in found)


def execute_tiled(options: argparse.Namespace) -> int:
    """Run one image in tiles."""
    import leanconv
    from leanconv.api.tile_journal import Journal
    from leanconv.images import ENDS, open_image

    if len(options.images) != 1 or options.out is None:
        raise UsageError(
            f"--tiled takes one image and --out; got {len(options.images)} images and "
            f"--out {options.out}: leanconv run MODEL --tiled big.npy --out result.npy"
        )
    if not options.out.rstrip("/").lower().endswith(ENDS):
        raise UsageError(f"--out is {options.out!r}; expected an end of {', '.join(ENDS)}")
    if options.save:
        raise UsageError("--save goes without --tiled; expected --out")
    unheeded = _given(options, _UNHEEDED)
    if unheeded:
        raise UsageError(
            f"{unheeded} beside --tiled, which takes the numbers of the image as they are, at its "
            "size; expected no options that it does not heed"
        )
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
        x = open_image(source, options.axes)
        if Path(out).exists() and Path(out).samefile(source):
            raise UsageError(f"--out is the image, {source}; expected another name")
        plan = tiled.bind_images({tiled.inputs[0].name: x})
        if len(plan.windows.whole.outputs) != 1:
            raise InputError(
                f"the network has the outputs {', '.join(plan.windows.whole.outputs)}; expected "
                "one for --tiled: call leanconv.tiled from Python"
            )
        path = f"{out.rstrip('/')}.tiles"
        if not os.path.lexists(path):  # else what is there is that run's
            _refuse_old(out)

        def say(stage: str, done: int, total: int) -> None:
            shown.say(f"{stage}, {done} of {total}")

        with Journal(path) as journal:
            y = _made(out, plan, options.out_axes, journal, path)
            tiled(x, out=y, journal=journal, progress=say)
        plan = tiled.plan
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


def _made(file: str, plan: TilePlan, layout: str | None, journal: Journal, name: str) -> Any:
    """Make the array of a result, or reopen that of the run that the journal, of a name, continues.

    The journal is there before the array: a run that is killed between the two begins anew.
    """
    from leanconv.api.tile_layouts import laid_out_shape, network_axes
    from leanconv.images import create_image, kind_of, ome_layout, reopen_image

    (output,), whole = plan.windows.whole.outputs, plan.windows.whole
    held, kind = whole.types[output], kind_of(file)
    axes = network_axes(len(held.shape), max(len(whole.types[n].shape) for n in whole.inputs) - 2)
    letters, shape, dtype = layout or axes, held.shape, np.dtype(held.dtype.numpy)
    if axes is not None:
        named = kind in (".tif", ".tiff") or file.lower().rstrip("/").endswith(".ome.zarr")
        letters = layout or (ome_layout(axes, held.shape) if named else axes)
        shape = laid_out_shape(held.shape, axes, letters, output)
    if not journal.has_tiles:
        # Nothing is overwritten but what a run left that was killed as it began.
        if journal.is_new:
            _refuse_old(file)
        refuse_without_folder(file.rstrip("/"))
        journal.claim()
        return create_image(file, shape, dtype, letters, overwrite=True)
    if not os.path.exists(file):
        raise InputError(
            f"the journal {name} says which parts of {file} are finished, which "
            "is not there: delete the journal to begin anew"
        )
    try:
        return reopen_image(file, shape, dtype, letters)
    except InputError as error:
        raise InputError(
            f"{error}; the journal beside it says that a run goes on: delete {name} to begin anew"
        ) from error


def _refuse_old(file: str) -> None:
    if os.path.lexists(file):
        raise InputError(f"{file!r} is there already; expected a new name, or delete it")
