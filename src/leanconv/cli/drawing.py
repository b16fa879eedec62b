"""`leanconv run --draw FILE`: the boxes that a detector found, drawn into the picture.

No ONNX file says which of its outputs are boxes, in which order their corners are and in which
unit. Drawn is what is known by a convention that its makers document, and nothing else:

- names of TensorFlow's detection API: `detection_boxes` (1, n, 4), top, left, bottom, right from 0
  to 1, `detection_scores` (1, n), and `detection_classes` if there are any;
- names of torchvision's detectors: `boxes` (n, 4), left, top, right, bottom in pixels of the input,
  `scores` (n), and `labels` if there are any;
- metadata of Ultralytics' exporter, of the task "detect": (1, 4 + classes, n), centres, widths and
  heights in pixels of the input, of which non-maximum suppression keeps some; or (1, n, 6), left,
  top, right, bottom, score and class, of which the network has kept some.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.cli.images import Fitting, Picture, upright
from leanconv.cli.options import UsageError
from leanconv.cli.output import writing
from leanconv.cli.preprocessing import ULTRALYTICS, Preprocessing
from leanconv.errors import InputError
from leanconv.graph.ops.selection import kept_boxes
from leanconv.records import dataclass
from leanconv.units import shape_text

Arrays = Mapping[str, np.ndarray]
_KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
# Of Ultralytics' own suppression, where the network has none.
_OVERLAP = 0.7
_MOST = 300
_Found = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # corners, scores, classes


@dataclass(frozen=True)
class Boxes:
    """The boxes that a detector found in a picture.

    Attributes:
        corners: (n, 4), left, top, right and bottom in pixels of the picture.
        scores: (n,).
        classes: (n,), numbers; None where the network has no classes.
        labels: names of the classes, as far as they are known.
    """

    corners: np.ndarray
    scores: np.ndarray
    classes: np.ndarray | None
    labels: Sequence[str]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the boxes as JSON objects, the highest score first."""
        order = np.argsort(-self.scores, kind="stable").tolist()
        return [
            {
                "box": [round(float(n), 2) for n in self.corners[number]],
                "score": float(self.scores[number]),
                "label": self.label(number),
            }
            for number in order
        ]

    def label(self, number: int) -> str:
        """The name of a box's class; its number where nobody named it, "" where there is none."""
        if self.classes is None:
            return ""
        kind = int(self.classes[number])
        return self.labels[kind] if 0 <= kind < len(self.labels) else str(kind)


def check_drawing(file: str, images: Sequence[str]) -> None:
    """Refuse a file that no drawing can become.

    Raises:
        UsageError: there are several pictures, or the file's ending says no kind of picture.
    """
    if len(images) != 1:
        raise UsageError(f"--draw takes one picture; got {len(images)}: run each by itself")
    if Path(file).suffix.lower() not in _KINDS:
        raise UsageError(f"--draw is {file!r}; expected a file that ends in {', '.join(_KINDS)}")


def found_boxes(
    outputs: Arrays,
    metadata: Mapping[str, str],
    picture: Picture,
    preprocessing: Preprocessing,
    least: float,
) -> Boxes:
    """The boxes of a detector's outputs.

    Args:
        outputs: of one picture, by name.
        metadata: of the model.
        picture: that was run.
        preprocessing: that it went through, with the names of the classes.
        least: the score that is drawn at least.

    Raises:
        InputError: the outputs are none of those that are known.
    """
    layout, labels = preprocessing.layout, preprocessing.labels
    height, width = picture.x.shape[2:] if layout == "NCHW" else picture.x.shape[1:3]
    is_known = metadata.get("author") == ULTRALYTICS and metadata.get("task") == "detect"
    found = (
        _named(outputs, "detection_boxes", "detection_scores", "detection_classes")
        or _named(outputs, "boxes", "scores", "labels")
        or (_exported(outputs, least) if is_known else None)
    )
    if found is None:
        shapes = ", ".join(f"{name} {shape_text(array.shape)}" for name, array in outputs.items())
        raise InputError(
            f"--draw does not know which of the outputs are boxes: {shapes}; expected those of "
            "TensorFlow's detection API or of torchvision by their names, or a detector exported "
            "by Ultralytics: write them with --save and draw them as examples/detector does"
        )
    corners, scores, classes = found
    if "detection_boxes" in outputs:
        corners = corners[:, [1, 0, 3, 2]] * np.array([width, height] * 2)
        labels = ()  # some count from 1, some from 0
    drawn = scores >= least
    corners = (corners[drawn] - np.array(picture.offset[::-1] * 2)) / np.array(
        picture.scale[::-1] * 2
    )
    return Boxes(corners, scores[drawn], None if classes is None else classes[drawn], labels)


def _named(outputs: Arrays, boxes: str, scores: str, classes: str) -> _Found | None:
    """Boxes, scores and classes of these names, of one picture, if they fit each other."""
    if boxes not in outputs or scores not in outputs:
        return None
    corners = outputs[boxes].astype(np.float64).reshape(-1, outputs[boxes].shape[-1])
    values = outputs[scores].astype(np.float64).ravel()
    kinds = outputs[classes].ravel() if classes in outputs else None
    fits = corners.shape == (values.size, 4) and (kinds is None or kinds.size == values.size)
    return (corners, values, kinds) if fits else None


def _exported(outputs: Arrays, least: float) -> _Found | None:
    """The boxes of the only output of a detector that Ultralytics exported."""
    (array, *more) = outputs.values()
    if more or array.ndim != 3 or len(array) != 1:
        return None
    if array.shape[2] == 6:
        rows = array[0].astype(np.float64)
        return rows[:, :4], rows[:, 4], rows[:, 5]
    centres, scores = array[0, :4].T.astype(np.float32), array[:, 4:].astype(np.float32)
    if not scores.size:
        return None
    kept = kept_boxes(centres[None], scores, _MOST, _OVERLAP, least, True, lambda _: None)
    kinds, places = kept[:, 1], kept[:, 2]
    middle, half = centres[places, :2].astype(np.float64), centres[places, 2:] / 2.0
    return np.hstack([middle - half, middle + half]), scores[0, kinds, places], kinds


def draw(file: str, image: str, fitting: Fitting, boxes: Boxes) -> None:
    """Write a picture with its boxes.

    Args:
        file: to write; `check_drawing` has seen it.
        image: the file of the picture.
        fitting: with which the picture is decoded.
        boxes: in its pixels.

    Raises:
        OSError: the file cannot be written.
    """
    from PIL import ImageDraw

    canvas = upright(image, fitting).convert("RGB")
    pen, line = ImageDraw.Draw(canvas), max(1, round(max(canvas.size) / 400))
    for number, (left, top, right, bottom) in enumerate(boxes.corners.tolist()):
        hue = 0.0 if boxes.classes is None else int(boxes.classes[number]) * 0.618 % 1.0
        shade = [round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.85, 0.9)]
        colour = (shade[0], shade[1], shade[2])
        across, down = sorted((left, right)), sorted((top, bottom))
        pen.rectangle((across[0], down[0], across[1], down[1]), outline=colour, width=line)
        text = f"{boxes.label(number)} {boxes.scores[number]:.2f}".strip()
        text = text.encode("latin-1", "replace").decode("latin-1")  # of the font that is built in
        place = across[0] + line, max(0.0, down[0] - 11)
        pen.rectangle(pen.textbbox(place, text), fill=colour)
        pen.text(place, text, fill=(255, 255, 255))
    with writing(file) as aside:
        canvas.save(aside, format=_KINDS[Path(file).suffix.lower()])
