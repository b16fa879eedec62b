"""From an image file to a network's input, as the model's metadata asks (the only user of Pillow).

Metadata of the ONNX file, all optional:
    input_layout  "NCHW" (default) or "NHWC"
    input_scale   a number that pixels of 0 to 255 are multiplied by (default 1/255)
    input_mean    subtracted after that: a JSON list, one number or one for each channel
                  (default ImageNet's for three channels, 0 for one)
    input_std     divided by after that: likewise (default ImageNet's, or 1)
    labels        a JSON list of the classes' names
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leanconv.errors import InputError, MissingExtraError, ModelError

_PIXEL_LIMIT = 100_000_000
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

    def label(self, index: int) -> str:
        """The name of a class, or its number where it has no name."""
        return self.labels[index] if index < len(self.labels) else str(index)


def read_image(
    file: str | Path, shape: tuple[int | str | None, ...] | None, preprocessing: Preprocessing
) -> np.ndarray:
    """Decode an image and make it a batch of one.

    Args:
        file: PNG, or whatever else Pillow reads.
        shape: of the network's input, four extents; height and width may be open (no ints), which
            keeps the image's own. Otherwise the image is resized.
        preprocessing: layout and numbers.

    Returns:
        A float32 array of the input's shape, with batch 1.

    Raises:
        InputError: the file is no image, too large, or the network takes no images.
        MissingExtraError: Pillow is not installed.
        OSError: the file cannot be opened.
    """
    if shape is None or len(shape) != 4:
        raise InputError(
            f"the network takes an input of shape {shape}, which is not an image; expected "
            "(N, C, H, W): give arrays with `leanconv verify`, or from Python"
        )
    nchw = preprocessing.layout == "NCHW"
    channels, height, width = shape[1:] if nchw else (shape[3], shape[1], shape[2])
    if not isinstance(channels, int) or channels not in _MODES:
        raise InputError(f"the network takes {channels} channels; expected 1 or 3 for an image")
    mean = preprocessing.mean or _MEANS[channels]
    std = preprocessing.std or _DEVIATIONS[channels]
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels):
            raise InputError(
                f"metadata input_{name} holds {len(values)} numbers for {channels} channels; "
                "expected one, or one for each"
            )
    pixels = _decode(Path(file), _MODES[channels], height, width)
    scaled = pixels.astype(np.float64) * preprocessing.scale
    scaled = (scaled - np.array(mean)) / np.array(std)
    ordered = scaled.transpose(2, 0, 1) if nchw else scaled
    return np.ascontiguousarray(ordered[np.newaxis], dtype=np.float32)


def _decode(file: Path, mode: str, height: int | str | None, width: int | str | None) -> np.ndarray:
    """Return pixels of shape (height, width, channels), uint8."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtraError(
            "reading images needs Pillow, which is not installed; "
            "install it with: pip install 'leanconv[image]'"
        ) from error
    try:
        with warnings.catch_warnings(), Image.open(file) as image:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if image.width * image.height > _PIXEL_LIMIT:
                raise InputError(
                    f"image {file} has {image.width}x{image.height} pixels; "
                    f"expected at most {_PIXEL_LIMIT:,}: make it smaller first"
                )
            size = (
                width if isinstance(width, int) else image.width,
                height if isinstance(height, int) else image.height,
            )
            converted = image.convert(mode)
            if converted.size != size:
                converted = converted.resize(size, Image.Resampling.BILINEAR)
            pixels = np.asarray(converted, dtype=np.uint8)
    except UnidentifiedImageError as error:
        raise InputError(
            f"{file} is not an image that Pillow can read; expected a PNG, for example"
        ) from error
    except Image.DecompressionBombError as error:
        raise InputError(f"image {file} is too large ({error}); make it smaller first") from error
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        if isinstance(error, InputError | FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        raise InputError(
            f"image {file} cannot be decoded ({error}); expected a whole one: save it anew"
        ) from error
    return pixels.reshape(*pixels.shape[:2], -1)


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
