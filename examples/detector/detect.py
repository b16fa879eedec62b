"""Find where text is: from a network's map of probabilities, or its list of boxes, to boxes.

    python examples/detector/detect.py --out found
    python examples/detector/detect.py --model DETECTOR.onnx photo.png --out found

Without a model, a small network of our own is fitted first (it needs the package onnx), and without
a picture, a page of numbers is drawn.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import leanconv
from examples.pictures import load_picture, resized, save_picture, to_input, with_boxes
from examples.scenes import page

Array = NDArray[np.floating]


def components(mask: NDArray[np.bool_]) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return the connected parts of a mask (h, w), each as its rows and columns.

    Rows are cut into runs; a run belongs to the part of every run above that it touches, corners
    included (Rosenfeld and Pfaltz 1966, on runs).
    """
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]  # one past the last; as many, in the same order
    parent = list(range(len(rows)))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    first = np.searchsorted(rows, np.arange(len(mask) + 1))
    for row in range(1, len(mask)):
        above, here = first[row - 1], first[row]
        while above < first[row] and here < first[row + 1]:
            if starts[here] <= ends[above] and starts[above] <= ends[here]:
                parent[root(here)] = root(int(above))
            if ends[above] < ends[here]:
                above += 1
            else:
                here += 1
    parts: dict[int, list[int]] = {}
    for run in range(len(rows)):
        parts.setdefault(root(run), []).append(run)
    found = []
    for runs in parts.values():
        columns = [np.arange(starts[run], ends[run]) for run in runs]
        lengths = [len(each) for each in columns]
        found.append((np.repeat(rows[runs], lengths), np.concatenate(columns)))
    return found


def boxes_of_map(
    chances: Array, threshold: float = 0.3, least: float = 0.5, unclip: float = 1.6
) -> tuple[Array, Array]:
    """From a map of probabilities to boxes: one for each connected part above the threshold.

    Args:
        chances: (h, w).
        threshold: above which a pixel may belong to a text.
        least: mean probability of a part that counts.
        unclip: how far boxes grow on each side, in units of area / perimeter: DB's maps show the
            core of a text only (arXiv 1911.08947, equation 10).

    Returns:
        Boxes (n, 4) of left, top, right, bottom, and the mean probability of each, (n,).
    """
    boxes, scores = [], []
    for rows, columns in components(chances > threshold):
        score = float(chances[rows, columns].mean())
        left, right = columns.min(), columns.max() + 1
        top, bottom = rows.min(), rows.max() + 1
        if score < least or min(right - left, bottom - top) < 3:
            continue
        width, height = right - left, bottom - top
        grown = unclip * width * height / (2 * (width + height))
        boxes.append((left - grown, top - grown, right + grown, bottom + grown))
        scores.append(score)
    return np.array(boxes, np.float64).reshape(-1, 4), np.array(scores)


def nms(boxes: Array, scores: Array, most_overlap: float = 0.5) -> NDArray[np.intp]:
    """Non-maximum suppression: of boxes that overlap, the one of the highest score.

    Args:
        boxes: (n, 4) of left, top, right, bottom.
        scores: (n,).
        most_overlap: intersection over union that two boxes which are kept may have.

    Returns:
        Which boxes are kept, the best first.
    """
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    waiting, kept = np.argsort(-scores, kind="stable"), []
    while waiting.size:
        best, others = waiting[0], waiting[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[others, :2])
        high = np.minimum(boxes[best, 2:], boxes[others, 2:])
        shared = np.clip(high - low, 0, None).prod(axis=1)
        overlap = shared / np.maximum(areas[best] + areas[others] - shared, 1e-9)
        waiting = others[overlap <= most_overlap]
    return np.array(kept, np.intp)


def boxes_of_list(
    rows: Array, least: float = 0.25, most_overlap: float = 0.5
) -> tuple[Array, Array, NDArray[np.intp]]:
    """From the list of boxes of a YOLO to those that count.

    Args:
        rows: (n, 5 + classes) with centre, size and "is an object" (v5, v7), or (4 + classes, n)
            without the latter (v8 and later).
        least: score that counts.
        most_overlap: as of `nms`, within a class.

    Returns:
        Boxes (m, 4) of left, top, right, bottom; their scores (m,); their classes (m,).
    """
    if rows.shape[0] < rows.shape[1]:
        rows = rows.T
        chances = rows[:, 4:]
    else:
        chances = rows[:, 4:5] * rows[:, 5:]
    classes, scores = chances.argmax(axis=1), chances.max(axis=1)
    likely = scores > least
    centre, size = rows[likely, :2], rows[likely, 2:4]
    boxes = np.hstack([centre - size / 2, centre + size / 2])
    classes, scores = classes[likely], scores[likely]
    apart = classes[:, None] * (np.abs(boxes).max(initial=0.0) * 2 + 1)  # classes never overlap
    kept = nms(boxes + apart, scores, most_overlap)
    return boxes[kept], scores[kept], classes[kept]


def detect(
    network: leanconv.Network,
    pixels: NDArray[np.uint8],
    mean: tuple[float, ...] = (0.5,),
    std: tuple[float, ...] = (0.5,),
    multiple: int = 32,
    unclip: float = 1.6,
) -> tuple[Array, Array]:
    """Find boxes in a picture, in its own pixels.

    The picture is stretched to multiples of `multiple`, or to the network's size if that is fixed.
    """
    height, width = pixels.shape[:2]
    _, channels, *sizes = network.inputs[0].shape
    rows, columns = (
        size if isinstance(size, int) else max(1, round(have / multiple)) * multiple
        for size, have in zip(sizes, (height, width), strict=True)
    )
    x = to_input(resized(pixels, rows, columns), channels, mean, std)
    y = network(x)
    if y.ndim == 4:
        boxes, scores = boxes_of_map(y[0, 0], unclip=unclip)
    else:
        boxes, scores, _ = boxes_of_list(y[0])
    to_picture = np.array([width / columns, height / rows] * 2)
    most = np.array([width, height] * 2)
    return np.clip(boxes * to_picture, 0, most), scores


def main(arguments: list[str] | None = None) -> int:
    """Detect as the command line says; return 0."""
    parser = argparse.ArgumentParser(description="Find text, or objects, in a picture.")
    parser.add_argument("picture", nargs="?", type=Path, help="default: a page is drawn")
    parser.add_argument("--model", type=Path, help="an ONNX file; default: a network of our own")
    parser.add_argument("--out", type=Path, required=True, help="folder for the picture with boxes")
    parser.add_argument("--mean", type=float, nargs="+", default=[0.5])
    parser.add_argument("--std", type=float, nargs="+", default=[0.5])
    parser.add_argument("--unclip", type=float, help="growth of a map's boxes (1.6; ours 0)")
    options = parser.parse_args(arguments)
    if options.model:
        network, unclip = leanconv.load(options.model), 1.6
    else:
        from examples.networks.fitting import fitted_detector

        network, unclip = leanconv.load(fitted_detector()), 0.0  # fitted to whole boxes
    unclip = unclip if options.unclip is None else options.unclip
    picture = options.picture
    pixels = load_picture(picture) if picture else page(np.random.default_rng(1))[0]
    boxes, scores = detect(network, pixels, options.mean, options.std, unclip=unclip)
    for box, score in zip(boxes, scores, strict=True):
        left, top, right, bottom = np.round(box).astype(int)
        print(f"{score:6.1%}  left {left}, top {top}, right {right}, bottom {bottom}")
    file = options.out / "boxes.png"
    save_picture(file, with_boxes(pixels, boxes))
    print(f"{len(boxes)} boxes: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
