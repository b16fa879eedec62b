"""Preprocessing: how pixels become the numbers that a network was trained with.

Who says it, the first that does:
    the options `--preset`, `--scale`, `--mean`, `--std`, `--layout` and `--channels`;
    the model's metadata, in one of three forms:
        this package's keys
            input_layout    "NCHW" (default) or "NHWC"
            input_channels  "RGB" (default) or "BGR"
            input_scale     a number that pixels of 0 to 255 are multiplied by (default 1/255)
            input_mean      subtracted after that: a JSON list, one number or one a channel (0)
            input_std       divided by after that: likewise (1)
            labels          a JSON list of the classes' names
        ONNX's keys for images (docs/MetadataProps.md of ONNX)
            Image.NominalPixelRange   such as "Normalized_0_1"
            Image.BitmapPixelFormat   such as "Bgr8"
        what Ultralytics' exporter writes: an author of that name, and names
    an input of integers, which takes pixels as they are.
Where nobody says it, it is asked for: no numbers are right for most networks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

from leanconv.errors import InputError, ModelError
from leanconv.files import open_regular, read_whole
from leanconv.records import dataclass, replace

LAYOUTS = ("NCHW", "NHWC")
ORDERS = ("RGB", "BGR")
_LABEL_BYTES = 16 * 2**20  # as much as a model's metadata may take


@dataclass(frozen=True)
class Normalisation:
    """`(pixel * scale - mean) / std`, of pixels of 0 to 255.

    Attributes:
        scale: multiplies pixels.
        mean, std: one number, or one for each channel, in the network's order of channels.
        source: the origin of the numbers, as text for a user.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    source: str = ""

    @property
    def formula(self) -> str:
        """The formula as text, such as `(pixel / 255 - 0.5) / 0.5`."""
        text = "pixel"
        if self.scale != 1:
            times, part = f"{self.scale:.6g}", f"{1 / self.scale:.6g}"
            text += f" / {part}" if self.scale < 1 and len(part) < len(times) else f" * {times}"
        moved = any(self.mean)
        if moved:
            text += f" - {_listed(self.mean)}"
        if any(number != 1 for number in self.std):
            text = f"({text}) / {_listed(self.std)}" if moved else f"{text} / {_listed(self.std)}"
        return text


@dataclass(frozen=True)
class Preset:
    """A usual normalisation.

    Attributes:
        normalisation: its numbers.
        order: of the channels.
        what: the networks that it is for, as text for a user.
        multiple: of open heights and widths, where nobody says another.
    """

    normalisation: Normalisation
    order: str
    what: str
    multiple: int = 1


_IMAGENET = Normalisation(1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PRESETS: Mapping[str, Preset] = {
    "imagenet": Preset(_IMAGENET, "RGB", "classifiers of torchvision and timm"),
    "unit": Preset(Normalisation(1 / 255), "RGB", "0 to 1: YOLO and most detectors"),
    "signed": Preset(Normalisation(1 / 127.5, (1.0,)), "RGB", "-1 to 1: networks of TensorFlow"),
    "bytes": Preset(Normalisation(), "RGB", "0 to 255, as they are"),
    "caffe": Preset(
        Normalisation(1.0, (103.939, 116.779, 123.68)), "BGR", "BGR less its mean: VGG, ResNet"
    ),
    "ppocr": Preset(
        _IMAGENET, "BGR", "text detectors of PP-OCR: imagenet's numbers on BGR, multiples of 32", 32
    ),
}
_RANGES = {
    "NominalRange_0_255": Normalisation(),
    "Normalized_0_1": Normalisation(1 / 255),
    "Normalized_1_1": Normalisation(1 / 127.5, (1.0,)),
    "NominalRange_16_235": Normalisation(219 / 255, (-16.0,)),
}
_FORMATS = {"Gray8": "RGB", "Rgb8": "RGB", "Bgr8": "BGR"}
ULTRALYTICS = "Ultralytics"
_NAME = re.compile(r"(\d{1,6}):\s*(?:'([^'\\]{0,200})'|\"([^\"\\]{0,200})\")")


@dataclass(frozen=True)
class Preprocessing:
    """Options by which a picture becomes an input.

    Attributes:
        layout: one of `LAYOUTS`.
        order: of three channels, one of `ORDERS`.
        normalisation: None where nobody has said it.
        labels: names of the classes; empty when nobody gave any.
    """

    layout: str = "NCHW"
    order: str = "RGB"
    normalisation: Normalisation | None = None
    labels: tuple[str, ...] = ()

    @staticmethod
    def from_metadata(metadata: Mapping[str, str]) -> Preprocessing:
        """Read the metadata of a model.

        Raises:
            ModelError: a key that is there cannot be read.
        """
        own = Preprocessing(
            layout=_one_of(metadata, "input_layout", LAYOUTS),
            order=_one_of(metadata, "input_channels", ORDERS),
            normalisation=_own_numbers(metadata),
            labels=_labels(metadata.get("labels", "[]")),
        )
        if "Image.BitmapPixelFormat" in metadata:
            pixels = _one_of(metadata, "Image.BitmapPixelFormat", tuple(_FORMATS))
            own = replace(own, order=_FORMATS[pixels])
        if own.normalisation is None and "Image.NominalPixelRange" in metadata:
            said = _one_of(metadata, "Image.NominalPixelRange", tuple(_RANGES))
            numbers = replace(_RANGES[said], source="the model's Image.NominalPixelRange")
            own = replace(own, normalisation=numbers)
        if metadata.get("author") == ULTRALYTICS:
            unit = replace(PRESETS["unit"].normalisation, source="the model, made by Ultralytics")
            names = _numbered_names(metadata.get("names", ""))
            own = replace(own, normalisation=own.normalisation or unit, labels=own.labels or names)
        return own


def ask() -> str:
    """Return the message for a model without preprocessing: the options that say it."""
    usual = "; ".join(f"{name} ({preset.what})" for name, preset in PRESETS.items())
    return (
        "the model does not say how pixels become its input's numbers; expected --preset, or "
        f"--scale, --mean and --std. Presets: {usual}"
    )


def _own_numbers(metadata: Mapping[str, str]) -> Normalisation | None:
    """The numbers of this package's keys; None where none of them is there."""
    keys = [key for key in ("input_scale", "input_mean", "input_std") if key in metadata]
    if not keys:
        return None
    (scale, *_) = _numbers(metadata, "input_scale") or (1 / 255,)
    std = _numbers(metadata, "input_std") or (1.0,)
    for key, wrong in (("input_std", 0.0 in std), ("input_scale", scale <= 0)):
        if wrong:
            expected = "a number above 0" if key == "input_scale" else "numbers other than 0"
            raise ModelError(f"metadata {key} is {metadata[key][:80]!r}; expected {expected}")
    mean = _numbers(metadata, "input_mean") or (0.0,)
    return Normalisation(scale, mean, std, f"the model's {', '.join(keys)}")


def _one_of(metadata: Mapping[str, str], key: str, known: Sequence[str]) -> str:
    said = metadata.get(key, known[0])
    if said not in known:
        raise ModelError(f"metadata {key} is {said[:80]!r}; expected {' or '.join(known)}")
    return said


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


def _numbered_names(text: str) -> tuple[str, ...]:
    """The names in `{0: 'person', 1: 'bicycle'}`; none unless they are numbered from 0 on."""
    found = {int(number): one or two for number, one, two in _NAME.findall(text)}
    return tuple(found.values()) if list(found) == list(range(len(found))) else ()


def _listed(numbers: Sequence[float]) -> str:
    text = ", ".join(f"{number:.6g}" for number in numbers)
    return text if len(numbers) == 1 else f"[{text}]"


def read_labels(file: str) -> tuple[str, ...]:
    """Read the classes' names from a file: a JSON list, or one name on each line.

    Raises:
        InputError: the file holds no text, is no regular file, or is too large.
        OSError: the file cannot be read.
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
