"""`explain` of models, in the terminal, as JSON and as a page; `verify`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from examples.networks import SMALL_NETWORKS, mobilenet_v2
from leanconv.cli.explain_sizes import print_guards
from leanconv.pages import explain_page
from leanconv.planner import node_costs
from support import onnx_models
from support.cli_fakes import Call

MODEL = "examples/digits/digits.onnx"


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "resnext.onnx"
    path.write_bytes(SMALL_NETWORKS["resnext_like"]().SerializeToString())
    return str(path)


def test_a_model_in_the_terminal(call: Call) -> None:
    result = call("explain", MODEL)
    assert result.code == 0
    for word in (
        "layer",
        "algorithm",
        "ReduceMean",
        "memory ",
        "most of these buffers are in use at",
    ):
        assert word in result.out
    assert re.search(r"\nnot convolution: [\d.]+% of the predicted time, .*\n$", result.out)


def test_every_layer_with_every_candidate(call: Call, residual: str) -> None:
    document = json.loads(call("explain", residual, "--shape", "1,3,64,64", "--json").out)
    assert document["memory_bytes"] == document["weight_bytes"] + document["arena_bytes"]
    assert {"Conv", "MaxPool"} <= {layer["op"] for layer in document["layers"]}
    others = [x["time_ns"] for x in document["layers"] if not x["op"].startswith("Conv")]
    assert document["other_ns"] == sum(others) > 0
    several = [layer for layer in document["layers"] if len(layer["candidates"]) > 1]
    assert several
    for layer in document["layers"]:
        chosen = [c for c in layer["candidates"] if c["chosen"]]
        assert len(chosen) == 1
        assert chosen[0]["algorithm"] == layer["algorithm"]
        for candidate in layer["candidates"]:
            assert bool(candidate["reason"]) != candidate["chosen"]
            assert candidate["time_ns"] >= layer["time_ns"]  # nothing was faster: no limit
    errors = [layer["error_so_far"] for layer in document["layers"]]
    assert errors == sorted(errors)
    assert errors[-1] == pytest.approx(document["predicted_error"])
    passed = [layer["passed_error"] for layer in document["layers"]]
    assert sum(error**2 for error in passed) == pytest.approx(errors[-1] ** 2)


def test_the_arena_is_told_as_it_is(call: Call, residual: str) -> None:
    document = json.loads(call("explain", residual, "--shape", "1,3,64,64", "--json").out)
    arena = document["arena"]
    totals = [
        sum(b["bytes"] for b in arena["buffers"] if b["first"] <= time <= b["last"])
        for time in range(len(arena["calls"]))
    ]
    assert arena["peak"]["bytes"] == max(totals) == totals[arena["peak"]["call"]]
    assert max(b["offset"] + b["bytes"] for b in arena["buffers"]) == arena["bytes"]
    alive = {b["name"] for b in arena["buffers"]} & set(arena["peak"]["buffers"])
    assert alive == set(arena["peak"]["buffers"])


def test_under_a_limit_it_says_what_would_not_fit(call: Call, tmp_path: Path) -> None:
    """Of two layers that on every machine are faster with more memory."""
    w = np.ones((32, 32, 3, 3), "float32")
    nodes = [
        helper.make_node("Conv", [x, "w"], [y], name=y, pads=(1, 1, 1, 1))
        for x, y in (("x", "first"), ("first", "second"))
    ]
    model = str(tmp_path / "two.onnx")
    made = onnx_models.model(nodes, {"x": (1, 32, 20, 20)}, ["second"], {"w": w})
    Path(model).write_bytes(made.SerializeToString())
    free = json.loads(call("explain", model, "--json").out)
    front = [point["bytes"] for point in free["front"]]
    assert front == sorted(front)
    assert len(front) > 1
    times = [point["time_ns"] for point in free["front"]]
    assert times == sorted(times, reverse=True)
    limit = str(front[0])
    tight = json.loads(call("explain", model, "--memory-limit", limit, "--json").out)
    assert tight["memory_bytes"] <= front[0]
    reasons = [c["reason"] for layer in tight["layers"] for c in layer["candidates"]]
    assert any("more than the limit" in reason for reason in reasons)


def test_one_layer(call: Call) -> None:
    document = json.loads(call("explain", MODEL, "--json").out)
    name = next(layer["name"] for layer in document["layers"] if layer["op"] == "Conv")
    shown = call("explain", MODEL, "--layer", name)
    assert shown.code == 0
    assert "why it lost" in shown.out
    assert "chosen" in shown.out
    unknown = call("explain", MODEL, "--layer", "nobody")
    assert unknown.code == 1
    assert name in unknown.err


def test_the_layers_that_take_longest_are_shown_and_all_where_asked(
    call: Call, tmp_path: Path
) -> None:
    file = tmp_path / "mobile.onnx"
    file.write_bytes(mobilenet_v2(image=(32, 32), batch=1, width=0.25).SerializeToString())
    layers = json.loads(call("explain", str(file), "--json").out)["layers"]
    names = [layer["name"] for layer in layers]

    def shown(*options: str) -> list[str]:
        table = call("explain", str(file), "--wide", *options).out.partition("────")[2]
        return [line.split()[0] for line in table.splitlines()[1:] if line.split()[:1]]

    assert shown("--all")[: len(names)] == names
    least = sorted(layer["time_ns"] for layer in layers)[-10]
    longest = [layer["name"] for layer in layers if layer["time_ns"] >= least]
    assert shown()[:10] == longest[:10]  # in the network's order
    assert f"these 10 of {len(names)} layers take" in call("explain", str(file)).out


def test_a_node_of_the_file_is_found_in_the_layer_that_computes_it(
    call: Call, tmp_path: Path
) -> None:
    """A block is one layer, named as its last convolution; others of it have names in the file."""
    file, made = tmp_path / "mobile.onnx", mobilenet_v2(image=(32, 32), batch=1, width=0.25)
    file.write_bytes(made.SerializeToString())
    layers = {x["name"] for x in json.loads(call("explain", str(file), "--json").out)["layers"]}
    names = [node.name for node in made.graph.node if node.op_type == "Conv"]
    place = next(n for n, name in enumerate(names) if name in layers and names[n - 1] not in layers)
    inside, block = names[place - 1], names[place]
    found = call("explain", str(file), "--layer", inside)
    assert found.code == 0, found.err
    assert f"{inside} of the file is computed in the layer {block}" in found.out
    assert "why it lost" in found.out


def test_a_problem_says_no_least_result_of_weights_that_nobody_knows(call: Call) -> None:
    shown = " ".join(call("explain", "ic64ih56oc64oh54kh3").out.split())
    assert "the error is stated where no input exceeds" in shown
    assert "0.0e+00" not in shown


def test_a_model_may_be_called_like_a_problem(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(MODEL).read_bytes()
    monkeypatch.chdir(tmp_path)
    Path("ic3ih5oc4kh3").write_bytes(data)
    assert "ReduceMean" in call("explain", "ic3ih5oc4kh3").out


def test_a_problem_of_one_axis_and_one_with_a_long_name(call: Call) -> None:
    assert "direct" in call("explain", "ic3iw50oc4kw1").out
    assert call("explain", f"ic3iw5oc4kw1n{'x' * 1000}").code == 0


def test_open_shapes_and_options_that_go_with_models(call: Call, residual: str) -> None:
    result = call("explain", residual, "--shape", "y=1")
    assert result.code == 1
    problem = call("explain", "ic3ih5oc4kh3", "--layer", "a")
    assert problem.code == 2
    assert "go with a model" in problem.err
    named = call("explain", "ic3ih5oc4kh3", "--algorithm", "a=direct")
    assert named.code == 2
    assert "leanconv algorithms ic3ih5oc4kh3" in named.err


def test_a_plan_is_written_and_read(call: Call, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    first = json.loads(call("explain", MODEL, "--save", file, "--json").out)
    again = json.loads(call("explain", MODEL, "--plan", file, "--json").out)
    assert again["memory_bytes"] == first["memory_bytes"]
    assert call("verify", MODEL, "--plan", file, "--count", "1").code == 0
    assert call("explain", MODEL, "--plan", str(tmp_path / "no.json")).code == 1


class Page(HTMLParser):
    """Counts what stands in a page, and sees that every element ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.loaded: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loaded += [value or "" for key, value in attrs if key in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_is_whole_and_alone(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert call("explain", MODEL, "--html", str(file)).code == 0
    document = json.loads(call("explain", MODEL, "--json").out)
    page = Page(file.read_text(encoding="utf-8"))
    assert page.loaded == []
    assert "script" not in page.counts
    assert page.counts["svg"] == 3
    errors = len(document["layers"])
    assert page.counts["rect"] == len(document["arena"]["buffers"]) + errors
    assert page.counts["circle"] == len(document["front"]) + 1
    opened = [each for each in document["layers"] if each["candidates"][1:] or each["rejected"]]
    assert page.counts["details"] == len(opened) < len(document["layers"])
    assert "0 other ways" not in page.texts
    for layer in document["layers"]:
        assert layer["name"] in page.texts


def test_names_from_files_are_text_in_the_page() -> None:
    """A file may call its layers whatever it likes."""
    net = lc.load(MODEL)
    net.bind((1, 1, 32, 32))
    report = net.report()
    nasty = '<img src=x onerror="alert(1)">'
    report["layers"][0]["name"] = report["arena"]["buffers"][0]["name"] = nasty
    report["arena"]["peak"]["buffers"] = [nasty]
    page = Page(explain_page(nasty, report))
    assert "img" not in page.counts
    assert nasty in page.texts


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_the_page_in_a_browser(call: Call, tmp_path: Path) -> None:
    """Chromium lays the page out: boxes of the arena have colours and sizes."""
    file = tmp_path / "page.html"
    assert call("explain", MODEL, "--html", str(file)).code == 0
    picture = tmp_path / "page.png"
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,1600"]
    shot = [f"--screenshot={picture}", f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()]
    subprocess.run([*command, *shot], check=True, capture_output=True)
    image = pytest.importorskip("PIL.Image").open(picture).convert("RGB")
    assert image.size == (1200, 1600)
    pixels = np.asarray(image).reshape(-1, 3).astype(int)
    for colour in ((0x4F, 0x7C, 0xAC), (0xC2, 0x41, 0x0C)):
        near = (np.abs(pixels - colour).sum(axis=1) < 12).sum()
        assert near > 100, f"no {colour} in the picture"


def test_verify(call: Call, tmp_path: Path) -> None:
    document = json.loads(call("verify", MODEL, "--json").out)
    assert document["kept"] is True
    assert 0 < document["worst_error"] <= document["predicted_error"]
    assert len(document["rows"]) == 3
    sample = tmp_path / "x.npy"
    np.save(sample, np.ones((2, 1, 32, 32), np.float32))
    bundle = tmp_path / "x.npz"
    np.savez(bundle, input=np.ones((1, 1, 32, 32), np.float32))
    shown = call("verify", MODEL, str(sample), str(bundle))
    assert shown.code == 0
    assert "x.npy" in shown.out
    assert "kept" in shown.out


def test_verify_says_when_a_plan_breaks_its_word(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leanconv.planner.network_plan import NetworkPlan

    monkeypatch.setattr(NetworkPlan, "predicted_error", 1e-12)
    result = call("verify", MODEL, "--count", "1")
    assert result.code == 3
    assert "NOT kept" in result.out


def test_a_network_for_which_no_error_is_stated(call: Call, tmp_path: Path) -> None:
    """Without a convolution or a product with weights: what others round is accepted."""
    file, plan = str(tmp_path / "up.onnx"), str(tmp_path / "plan.json")
    x, scales = np.zeros((1, 3, 9, 8), np.float32), onnx_models.floats(1, 1, 2.5, 2.5)
    made, _ = onnx_models.single("Resize", [x, None, scales], 17, mode="cubic")
    Path(file).write_bytes(made.SerializeToString())
    assert "no error is stated: none of what" in call("explain", file, "--wide").out
    found = call("verify", file, "--count", "1", "--wide")
    assert found.code == 0, found.out
    assert "the plan states none, and 1e-05 is accepted: kept" in found.out
    assert call("verify", file, "--count", "1", "--repair", plan).code == 0


def test_verify_with_a_damaged_bundle(call: Call, tmp_path: Path) -> None:
    """Its parts are compressed, and one is no array at all."""
    sample = tmp_path / "x.npz"
    np.savez_compressed(sample, input=np.arange(4096.0))
    data = bytearray(sample.read_bytes())
    data[100:1000] = bytes(900)
    sample.write_bytes(data)
    result = call("verify", MODEL, str(sample))
    assert result.code == 1
    assert "x.npz cannot be read" in result.err
    with ZipFile(sample, "w") as bundle:
        bundle.writestr("input", "text")
    assert "expected real numbers" in call("verify", MODEL, str(sample)).err


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("x.npy", b"\x89PNG\r\n\x1a\n" + bytes(30), "is a PNG picture; .*its own ending"),
        ("x.npy", b"\xff\xd8\xff\xe0" + bytes(30), "is a JPEG picture"),
        ("x.npy", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P", "is a Python pickle"),
        ("x.npy", b"version https://git-lfs.github.com/spec/v1\noid", "is a Git LFS pointer"),
        ("x.npy", b"", "is an empty file"),
        ("x.npy", b"\x93NUMPY", "cannot be read"),
    ],
)
def test_verify_names_samples_of_other_formats(
    call: Call, tmp_path: Path, name: str, data: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(data)
    result = call("verify", MODEL, str(tmp_path / name))
    assert result.code == 1
    assert re.search(f"{name} {what}", result.err), result.err
    assert "expected .npy or .npz of numbers" in result.err


def test_verify_repairs_a_plan_by_pictures(call: Call, tmp_path: Path) -> None:
    """The plan that is written was measured; what no plan keeps is refused with what works."""
    picture, file = next(Path("examples/digits").glob("**/*.png")), tmp_path / "plan.json"
    given = ("verify", MODEL, str(picture))
    assert call(*given, "--repair", str(file), "--max-error", "1e-4").code == 0
    report = json.loads(call(*given, "--plan", str(file), "--json").out)
    assert report["kept"]
    assert report["predicted_error"] == report["worst_error"]
    refused = call(*given, "--repair", str(file), "--max-error", "1e-9")
    assert refused.code == 1
    works = re.search(r"on the samples; give --max-error ([0-9.e-]+) or more", refused.err)
    assert works is not None
    assert call(*given, "--repair", str(file), "--max-error", works[1]).code == 0


def test_verify_names_the_layers_that_add_more_than_stated(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_costs, "closeness", lambda _: 1e-3)
    monkeypatch.setattr(node_costs, "last_layers", lambda _: frozenset())
    result = call("verify", MODEL, "--count", "1", "--json")
    report = json.loads(result.out)
    assert result.code == 3
    assert report["layers"]
    assert "--repair FILE" in report["mend"]
    for layer in report["layers"]:
        assert layer["passed"] > layer["expected"]
        assert layer["own"] <= layer["stated"]


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"PK\x03\x04", b"7"])
def test_verify_with_damaged_samples(call: Call, tmp_path: Path, data: bytes) -> None:
    sample = tmp_path / "x.npy"
    sample.write_bytes(data)
    result = call("verify", MODEL, str(sample))
    assert result.code == 1
    assert "x.npy" in result.err


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"images": np.zeros(3)}, r"holds images; expected input: write them with np.savez\("),
        ({"input": np.array(["a"])}, r"holds input of <U1; expected real numbers: convert"),
        ({"input": np.array([1j])}, r"holds input of complex128; expected real numbers"),
        ({"input": np.zeros((2, 32, 32, 1), "f4")}, r"give arrays as x.transpose\(0, 3, 1, 2\)"),
        (
            {"input": np.zeros((1, 2, 32, 32), "f4")},
            "got the shape 1x2x32x32; expected Nx1x32x32",
        ),
    ],
)
def test_verify_says_what_samples_should_hold(
    call: Call, tmp_path: Path, arrays: dict[str, np.ndarray], told: str
) -> None:
    sample = tmp_path / "x.npz"
    np.savez(sample, **arrays)
    result = call("verify", MODEL, str(sample))
    assert result.code == 1
    assert re.search(told, result.err), result.err


def test_verify_waits_for_no_pipe(call: Call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")
    result = call("verify", MODEL, str(tmp_path / "x.npy"))
    assert result.code == 1
    assert "not a regular file" in result.err


def test_verify_unpickles_nothing(call: Call, tmp_path: Path) -> None:
    sample = tmp_path / "x.npy"
    np.save(sample, np.array([{"a": 1}], object), allow_pickle=True)
    result = call("verify", MODEL, str(sample))
    assert result.code == 1
    assert "x.npy" in result.err


def test_a_double_precision_run_is_not_called_measured_against_itself(call: Call) -> None:
    result = call("verify", MODEL, "--dtype", "float64", "--count", "1")
    assert result.code == 0
    assert "The plan computes in float64 itself" in result.out
    assert "rel. error" in result.out


def test_a_shape_is_planned_alone_in_place_of_the_files(call: Call, tmp_path: Path) -> None:
    """What `--shape` says is planned as if the file fixed it, whatever that says."""
    files = {n: tmp_path / f"{n}.onnx" for n in ("fixed", "other", "open")}
    for name, size in (("fixed", (16, 24)), ("other", (9, 9)), ("open", ("H", "W"))):
        nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
        proto = onnx_models.model(
            nodes, {"x": (1, 8, *size)}, ["y"], {"w": np.ones((8, 8, 3, 3), "f4")}
        )
        files[name].write_bytes(proto.SerializeToString())
    shape = ("--shape", "1x8x16x24")
    for file in files.values():
        profile = json.loads(call("profile", str(file), *shape, "--repeat", "1", "--json").out)
        assert profile["inputs"] == {"x": [1, 8, 16, 24]}
    wanted = json.loads(call("explain", str(files["fixed"]), "--json").out)["text"]
    for name in ("other", "open"):
        assert json.loads(call("explain", str(files[name]), *shape, "--json").out)["text"] == wanted


def test_guards(call: Call, residual: str) -> None:
    result = call("explain", residual, "--guards", "--shape", "2x3x64x64")
    assert result.code == 0
    assert "layers are lowered once for all these sizes" in result.out
    assert re.search(r"\d+ kernels are instances of \d+ forms", result.out)
    given = ("--shape", "2x3x64x64", "--shape", "3x3x64x64", "--json")
    document = json.loads(call("explain", residual, "--guards", *given).out)
    assert [next(iter(each.values()))[0] for each in document["shapes"]] == [2, 3]
    assert {row["level"] for row in document["shared"]} >= {"graph", "choice", "kernel"}
    result = call("explain", "cv5", "--guards")
    assert result.code == 2
    assert "--guards goes with a model" in result.err


def test_guards_have_one_row_for_the_choices_of_all_graphs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        {"level": "choice", "name": "choices", "kept": kept, "served": 1, "guards": 3}
        | {"parted_by": [guard], "refusals": []}
        for kept, guard in ((1, "H == 48"), (2, "W < 9"))
    ]
    print_guards({"model": "m", "shapes": [], "refused": [], "shared": rows}, wide=True)
    assert re.search(r"\nchoice +choices +3 +2 +6 +W < 9; H == 48\n$", capsys.readouterr().out)
