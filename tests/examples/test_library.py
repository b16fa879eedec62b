"""The example of a compiled library: a C program and a page read the pictures as `load` does."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from leanconv.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DIGITS = EXAMPLES / "digits" / "digits.onnx"
PICTURES = sorted((EXAMPLES / "digits" / "images").glob("*.png"))
SOURCES = ("classify.c", "Makefile", "CMakeLists.txt")
WEB = ("index.html", "page.js", "digits.js", "network.js")
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
Answers = dict[str, tuple[int, np.float32]]  # by a picture's name, digit and score


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"there is no {tool}")


def output_of(*command: str | Path, **options: str) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


def stub(folder: Path, file: Path) -> Path:
    """Write a command in place of `leanconv`: it copies an object and notes its options."""
    command = folder / "leanconv"
    text = f'echo "$@" > {folder}/told\ncp {file} {file.with_suffix(".h")} .\n'
    command.write_text(f"#!/bin/sh\n{text}")
    command.chmod(0o755)
    return command


@pytest.fixture(scope="module")
def expected() -> Answers:
    """What `load` answers for one picture at a time."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    net, found = lc.load(DIGITS, threads=1), {}
    for file in PICTURES:
        with image.open(file) as picture:
            small = picture.resize((32, 32), image.Resampling.BILINEAR)
        pixels = np.asarray(small, np.float32)[None, None]
        scores = net((pixels * np.float32(1 / 255) - np.float32(0.5)) / np.float32(0.5))[0]
        found[file.stem] = int(scores.argmax()), scores.max()
    assert [digit for digit, _ in found.values()] == [int(name[6]) for name in found]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, with the network compiled, and the pictures as PGM."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    made = tmp_path_factory.mktemp("examples")
    shutil.copytree(EXAMPLES / "digits", made / "digits")
    (made / "library").mkdir()
    for name in SOURCES:
        shutil.copy(EXAMPLES / "library" / name, made / "library")
    for file in PICTURES:
        with image.open(file) as picture:
            picture.save(made / "library" / f"{file.stem}.pgm")
    lc.compile(DIGITS, made / "library" / "digits.o")
    return made / "library"


def check_answers(program: Path, expected: Answers) -> None:
    """Each picture gets its digit, and the score of `load` to the last bit."""
    printed = output_of(program, *(program.parent / f"{name}.pgm" for name in expected))
    found = {
        name: (int(digit), np.float32(score))
        for name, digit, score in re.findall(r"(\w+)\.pgm: (\d), score (\S+)\n", printed)
    }
    assert found == expected


@needs("cc")
@needs("make")
def test_the_program_reads_the_pictures(folder: Path, expected: Answers) -> None:
    output_of("make", "-C", folder, "classify", "CFLAGS=-Wall -Wextra -Wpedantic -Werror")
    check_answers(folder / "classify", expected)


@needs("cc")
@needs("make")
def test_what_the_program_says_of_bad_files(folder: Path) -> None:
    output_of("make", "-C", folder, "classify")
    (folder / "short.pgm").write_bytes((folder / "digit_7_a.pgm").read_bytes()[:-1])
    (folder / "large.pgm").write_bytes(b"P5 65 65 255\n" + bytes(65 * 65))
    (folder / "small.pgm").write_bytes(b"P5\n32 32\n255\n" + bytes(1024))
    names = [str(folder / f"{name}.pgm") for name in ("missing", "short", "large", "small")]
    done = subprocess.run(
        [str(folder / "classify"), *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == names[:3]
    assert done.stdout.startswith(f"{names[3]}: ")


@needs("cc")
@needs("cmake")
def test_cmake_builds_it(folder: Path, expected: Answers, tmp_path: Path) -> None:
    build = folder / "build"
    command = stub(tmp_path, folder / "digits.o")
    output_of("cmake", "-S", folder, "-B", build, f"-DLEANCONV={command}")
    output_of("cmake", "--build", build)
    options = build_parser().parse_args((tmp_path / "told").read_text().split())
    assert (Path(options.model).name, options.output) == ("digits.onnx", "digits.o")
    shutil.move(build / "classify", folder / "classify_by_cmake")
    check_answers(folder / "classify_by_cmake", expected)


@needs("make")
def test_the_commands_of_the_makefile_and_of_the_page_are_leanconvs() -> None:
    printed = output_of("make", "-nB", "-C", EXAMPLES / "library", "digits.o", "page/digits.wasm")
    commands = [line for line in printed.splitlines() if line.startswith("leanconv ")]
    assert len(commands) == 2
    for command in commands:
        options = build_parser().parse_args(shlex.split(command)[1:])
        assert os.path.samefile(EXAMPLES / "library" / options.model, DIGITS)
    told = re.findall(r"^    leanconv (compile .*)$", PAGE, re.MULTILINE)
    assert len(told) > 3
    for command in told:
        build_parser().parse_args(shlex.split(command))


@needs("cc")
@needs("cmake")
def test_the_program_of_the_page_is_built_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, language in (("main.c", "c"), ("CMakeLists.txt", "cmake")):
        (block,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        (tmp_path / name).write_text(block)
    shutil.copy(DIGITS, tmp_path / "model.onnx")
    stub(tmp_path, lc.compile(DIGITS, tmp_path / "net.o", threads=2).files[0])
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CFLAGS", "-Wall -Wextra -Wpedantic -Wconversion -Werror")
    output_of("cmake", "-S", tmp_path, "-B", tmp_path / "build")
    output_of("cmake", "--build", tmp_path / "build")
    options = build_parser().parse_args((tmp_path / "told").read_text().split())
    assert (Path(options.model).name, options.threads) == ("model.onnx", 2)
    printed = output_of(tmp_path / "build" / "main")
    scores = lc.load(DIGITS, threads=2)(np.zeros((1, 1, 32, 32), np.float32))[0]
    assert printed.split() == [f"{score:g}" for score in scores]


# -- in WebAssembly ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def web_folder(folder: Path) -> Path:
    """The page's folder, with the network in WebAssembly."""
    (folder / "page").mkdir()
    for name in WEB:
        shutil.copy(EXAMPLES / "library" / "page" / name, folder / "page")
    lc.compile(DIGITS, folder / "page" / "digits.wasm", target="wasm32-simd128")
    return folder / "page"


@needs("node")
def test_node_reads_the_pictures(web_folder: Path, expected: Answers) -> None:
    (web_folder / "package.json").write_text('{"type": "module"}')
    (web_folder / "read.js").write_text(_READ)
    found = json.loads(output_of("node", web_folder / "read.js", *expected))
    assert {name: answer["digit"] for name, (answer, _) in found.items()} == {
        name: digit for name, (digit, _) in expected.items()
    }
    for name, (answer, score) in found.items():
        assert score == pytest.approx(float(expected[name][1]), rel=1e-5)
        assert 0.9 < answer["probability"] < 1


@pytest.fixture
def served(web_folder: Path) -> Iterator[str]:
    """The address at which the examples' folder is served."""
    handler = functools.partial(_Quiet, directory=str(web_folder.parent.parent))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_page_reads_pictures_and_what_is_drawn(
    served: str, web_folder: Path, expected: Answers, tmp_path: Path
) -> None:
    page = (web_folder / "index.html").read_text(encoding="utf-8")
    (web_folder / "drawn.html").write_text(page.replace("</html>", _DRAW), encoding="utf-8")
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    address = f"{served}/library/page/drawn.html"
    shown = output_of(CHROMIUM, *options, profile, "--dump-dom", address)
    found = re.findall(r"(digit_\d_[ab])\.png\"><figcaption>(\d) \(9\d\.\d %\)<", shown)
    assert {name: int(digit) for name, digit in found} == {
        name: digit for name, (digit, _) in expected.items()
    }
    assert re.search(r'<output id="answer">1 \(\d+\.\d %\)</output>', shown)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Print nothing."""


_READ = """\
import fs from "node:fs";
import { Network } from "./network.js";
import { classify, prepared } from "./digits.js";

const here = (name) => new URL(name, import.meta.url);
const names = process.argv.slice(2);
const network = await Network.from(fs.readFileSync(here("digits.wasm")), "digits");
const answers = names.map((name) => {
  const pixels = fs.readFileSync(here(`../${name}.pgm`)).subarray(-64 * 64);
  const [scores] = network.run(prepared(pixels));
  return [name, [classify(network, pixels), Math.max(...scores)]];
});
console.log(JSON.stringify(Object.fromEntries(answers)));
"""
# A stroke from top to bottom, as soon as the network is there.
_DRAW = """\
<script type="module">
  const canvas = document.querySelector("canvas");
  const timer = setInterval(() => {
    if (document.querySelector("#answer").textContent !== "draw a digit") return;
    clearInterval(timer);
    const { left, top } = canvas.getBoundingClientRect();
    for (let y = 40; y <= 220; y += 20) {
      const place = { clientX: left + 128, clientY: top + y, buttons: 1 };
      canvas.dispatchEvent(new PointerEvent(y === 40 ? "pointerdown" : "pointermove", place));
    }
  }, 20);
</script>
</html>
"""
