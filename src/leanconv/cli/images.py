"""From an image file to a network's input, as the model's metadata asks (the only user of Pillow).

Metadata of the ONNX file, all optional:
    input_layout  "NCHW" (default) or "NHWC"
    input_scale   a number that pixels of 0 to 255 are multiplied by (default 1/255)
    input_mean    subtracted after that: a JSON list, one number or one for each channel
                  (default ImageNet's for three channels, 0 for one)
    input_std     divided by after that: likewise (default ImageNet's, or 1)
    labels        a JSON list of the classes' names

An image of another size than the network's is fitted (`FITS`): stretched, which is the default and
does not keep its proportions; made to fit and framed ("letterbox"); or made to fill and cut
("crop"). Where the network leaves its size open, the image keeps its own.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.errors import InputError, MissingExtraError, ModelError
from leanconv.files import open_regular, read_whole
from leanconv.graph.file_kinds import file_kind
from leanconv.records import dataclass
from leanconv.units import shape_text

FITS = ("stretch", "letterbox", "crop")
_FRAME = 114  # gray of a letterbox's frame, as detectors are trained with
_PIXEL_LIMIT = 100_000_000
_FILE_BYTES = 2**30
_LABEL_BYTES = 16 * 2**20  # as much as a model's metadata may take
# Pillow would hand PostScript to Ghostscript, and has decoders that hardly anybody looks at.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "JPEG2000")
_HEAD_BYTES = 4096  # that are looked at to tell what another file is
_MODES = {1: "L", 3: "RGB"}
_MEANS = {1: (0.0,), 3: (0.485, 0.456, 0.406)}
_DEVIATIONS = {1: (1.0,), 3: (0.229, 0.224, 0.225)}


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become numbers: `(pixel * scale - mean) / std`.

    Attributes:
        layout: `"NCHW"` or `"NHWC"`.
        scale: multiplies pixels of 0 to 255.
        mean, std: one number, or one for each channel; None where the model does not say.
        labels: names of the classes; empty when the model has none.
    """

    layout: str = "NCHW"
    scale: float = 1.0 / 255.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    labels: tuple[str, ...] = ()

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> Preprocessing:
        """Read the metadata of a model.

        Raises:
            ModelError: a key that is there cannot be read.
        """
        layout = metadata.get("input_layout", "NCHW")
        if layout not in ("NCHW", "NHWC"):
            raise ModelError(f"metadata input_layout is {layout!r}; expected NCHW or NHWC")
        std = _numbers(metadata, "input_std")
        if std and 0.0 in std:
            raise ModelError(f"metadata input_std is {std}; expected numbers other than 0")
        return Preprocessing(
            layout=layout,
            scale=(_numbers(metadata, "input_scale") or (1.0 / 255.0,))[0],
            mean=_numbers(metadata, "input_mean"),
            std=std,
            labels=_labels(metadata.get("labels", "[]")),
        )


@dataclass(frozen=True)
class Fitting:
    """How an image of another size becomes one of the network's.

    Attributes:
        fit: one of `FITS`.
        fill: the gray, 0 to 255, of a letterbox's frame.
        multiple: open heights and widths become the nearest multiple of this.
    """

    fit: str = "stretch"
    fill: int = _FRAME
    multiple: int = 1


_AS_IT_IS = Fitting()


@dataclass(frozen=True)
class Picture:
    """An image as a network's input, and its place there.

    Attributes:
        x: float32, of the input's shape, with batch 1.
        size: height and width of the image.
        scale: the input's pixels for one of the image, down and to the right.
        offset: the place of the image's top left corner in the input, in its pixels; negative where
            it was cut off.
    """

    x: np.ndarray
    size: tuple[int, int]
    scale: tuple[float, float]
    offset: tuple[float, float]


def read_image(
    file: str | Path,
    shape: tuple[int | str | None, ...] | None,
    preprocessing: Preprocessing,
    fitting: Fitting = _AS_IT_IS,
) -> Picture:
    """Decode an image and make it a batch of one.

    Args:
        file: PNG, JPEG, BMP, GIF, PPM, TIFF, WEBP or JPEG2000; the first picture of several.
        shape: of the network's input, four extents; height and width may be open (no ints), which
            keeps the image's own.
        preprocessing: layout and numbers.
        fitting: what becomes of an image of another size.

    Raises:
        InputError: the file is no image, too large, or the network takes no images.
        MissingExtraError: Pillow is not installed.
        OSError: the file cannot be opened.
    """
    if shape is None or len(shape) != 4:
        raise InputError(
            f"the network takes an input of shape {shape_text(shape)}, which is not an image; "
            "expected NxCxHxW: give arrays as .npy or .npz"
        )
    nchw = preprocessing.layout == "NCHW"
    channels, height, width = shape[1:] if nchw else (shape[3], shape[1], shape[2])
    if not isinstance(channels, int) or channels not in _MODES:
        hint = "; it looks like NHWC: try --layout NHWC" if nchw and shape[3] in _MODES else ""
        raise InputError(
            f"the network takes {channels} channels; expected 1 or 3 for an image{hint}"
        )
    mean = preprocessing.mean or _MEANS[channels]
    std = preprocessing.std or _DEVIATIONS[channels]
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels):
            raise InputError(
                f"metadata input_{name} holds {len(values)} numbers for {channels} channels; "
                "expected one, or one for each"
            )
    pixels, size, scale, offset = _decode(Path(file), _MODES[channels], (height, width), fitting)
    scaled = pixels.astype(np.float64) * preprocessing.scale
    scaled = (scaled - np.array(mean)) / np.array(std)
    ordered = scaled.transpose(2, 0, 1) if nchw else scaled
    x = np.ascontiguousarray(ordered[np.newaxis], dtype=np.float32)
    return Picture(x, size, scale, offset)


_Placed = tuple[np.ndarray, tuple[int, int], tuple[float, float], tuple[float, float]]


def _decode(
    file: Path, mode: str, wanted: tuple[int | str | None, int | str | None], fitting: Fitting
) -> _Placed:
    """Return pixels, uint8 (height, width, channels), and what a `Picture` says of them."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError(
            "reading images needs Pillow, which is not installed; "
            "install it with: pip install 'leanconv[image]'"
        ) from error
    try:
        with (
            warnings.catch_warnings(),
            open_regular(file, _FILE_BYTES, what="image", advice="make it smaller") as data,
            Image.open(data, formats=_FORMATS) as image,
        ):
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if image.width * image.height > _PIXEL_LIMIT:
                raise InputError(
                    f"image {file} has {image.width}x{image.height} pixels; "
                    f"expected at most {_PIXEL_LIMIT:,}: make it smaller first"
                )
            return _fitted(image.convert(mode), wanted, fitting)
    except UnidentifiedImageError as error:
        with open_regular(file) as raw:
            kind = file_kind(raw.read(_HEAD_BYTES))
        raise InputError(
            f"{file} is {kind.what if kind else 'not an image that can be read'}; expected one of "
            f"{', '.join(_FORMATS)}"
        ) from error
    except Image.DecompressionBombError as error:
        raise InputError(f"image {file} is too large ({error}); make it smaller first") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        if isinstance(error, InputError | FileNotFoundError | PermissionError):
            raise
        raise InputError(
            f"image {file} cannot be decoded ({error}); expected a whole one: save it anew"
        ) from error


def _fitted(
    image: Any, wanted: tuple[int | str | None, int | str | None], fitting: Fitting
) -> _Placed:
    """Resize an image of Pillow's as requested."""
    from PIL import Image

    own = image.height, image.width
    height, width = (
        extent if isinstance(extent, int) else _rounded(have, fitting.multiple)
        for extent, have in zip(wanted, own, strict=True)
    )
    if height * width > _PIXEL_LIMIT:
        raise InputError(
            f"the network would be given {height}x{width} pixels; expected at most "
            f"{_PIXEL_LIMIT:,}: give a smaller --shape"
        )
    inner, top, left, box = (height, width), 0.0, 0.0, (0.0, 0.0, float(own[1]), float(own[0]))
    scale = height / own[0], width / own[1]
    if fitting.fit == "letterbox":
        ratio = min(scale)
        inner = max(1, round(own[0] * ratio)), max(1, round(own[1] * ratio))
        scale = inner[0] / own[0], inner[1] / own[1]
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    elif fitting.fit == "crop":  # what is cut off is not enlarged first
        ratio = max(scale)
        scale = ratio, ratio
        top, left = (
            min(0.0, (extent - have * ratio) / 2)
            for extent, have in zip((height, width), own, strict=True)
        )
        box = (-left / ratio, -top / ratio, own[1] + left / ratio, own[0] + top / ratio)
    if own != inner or fitting.fit == "crop":
        image = image.resize(inner[::-1], Image.Resampling.BILINEAR, box)
    if inner != (height, width):
        framed = Image.new(image.mode, (width, height), (fitting.fill,) * len(image.getbands()))
        framed.paste(image, (int(left), int(top)))
        image = framed
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels.reshape(height, width, -1), own, scale, (top, left)


def _rounded(extent: int, multiple: int) -> int:
    return max(1, (extent + multiple // 2) // multiple) * multiple


def _numbers(metadata: Mapping[str, str], key: str) -> tuple[float, ...] | None:
    text = metadata.get(key)
    if text is None:
        return None
    try:
        value = json.loads(text)
        numbers = tuple(float(v) for v in (value if isinstance(value, list) else [value]))
    except (ValueError, TypeError, OverflowError, RecursionError):
        numbers = ()
    if not numbers or not all(math.isfinite(number) for number in numbers):
        raise ModelError(f"metadata {key} is {text[:80]!r}; expected a number or a list of them")
    return numbers


def _labels(text: str) -> tuple[str, ...]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list) or not all(isinstance(label, str) for label in value):
        raise ModelError(f"metadata labels is {text[:80]!r}; expected a JSON list of text")
    return tuple(value)


def read_labels(file: str) -> tuple[str, ...]:
    """Read the classes' names from a file: a JSON list, or one name on each line.

    Raises:
        InputError: the file holds no text, is no regular file, or is too large.
        OSError: it cannot be read.
    """
    try:
        with open_regular(
            file, _LABEL_BYTES, what="labels", advice="give names of classes"
        ) as data:
            text = read_whole(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"labels {file} is no text in UTF-8; expected one name on each line, or a JSON list"
        ) from error
    if text.lstrip().startswith("["):
        return _labels(text)
    return tuple(line.strip() for line in text.splitlines() if line.strip())
