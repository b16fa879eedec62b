"""Networks from snapshots: the bits of planned ones, whatever has become of the files."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.api import snapshots
from leanconv.api.network import Network
from leanconv.api.planned_call import PlannedCall
from leanconv.api.snapshots import SnapshotBackend, Snapshots
from leanconv.codegen.cache import DiskCache
from leanconv.records import replace
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.portable import PortableProgram, described, program_of
from leanconv.runtime.program import Constant, Place, Slot
from leanconv.runtime.snapshot_file import _HEAD, _PIECE, WRONG, _checksum, _head
from leanconv.settings import Settings
from leanconv.spec.format import aligned
from support.cache_check import run_program
from support.late_networks import LateNetwork
from support.network_models import small_model
from support.onnx_models import model, small_cnn
from support.quantised_networks import QuantisedNetwork
from support.random_networks import RandomNetwork

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(bool(os.environ.get("TEST_GUARDED")), reason="constants have no guards"),
]
X = np.random.default_rng(5).standard_normal((2, 3, 16, 16)).astype("f4")
Answers = dict[str, np.ndarray]
GIVEN = {
    **dict.fromkeys(("memory_limit", "max_error", "threads", "dtype", "shapes", "progress")),
    **dict.fromkeys(("algorithms", "precision")),
    "reproducible": False,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Snapshots are kept in a folder of the test's."""
    settings = Settings(cache_dir=tmp_path / "cache")
    monkeypatch.setattr(snapshots, "current_settings", lambda: settings)
    return settings.cache_dir / "snapshots"


def small(size: int | str = 16) -> bytes:
    """A network of 3 convolutions, of open sizes or of one."""
    proto = small_cnn(batch=2)
    if isinstance(size, int):
        for dim in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
            dim.dim_value = size
    return bytes(proto.SerializeToString())


def from_snapshot(net: Network) -> bool:
    return isinstance(net._backend, SnapshotBackend)


def kept(data: Any, **options: Any) -> Network:
    """A network that is planned now; once it has run, or if its sizes are fixed, it is kept."""
    net = lc.load(data, **options)
    assert not from_snapshot(net)
    return net


def taken(data: Any, **options: Any) -> Network:
    """A network from a snapshot."""
    net = lc.load(data, **options)
    assert from_snapshot(net)
    return net


def same(found: Answers, expected: Answers) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        assert found[name].tobytes() == array.tobytes(), name


def plans(folder: Path) -> list[Path]:
    """The snapshots of networks for shapes."""
    return sorted(folder.glob("*-*.snapshot"))


def test_the_second_network_has_the_same_bits_and_facts(folder: Path) -> None:
    first = kept(small())
    second = taken(small())
    same(second.run({"x": X}), first.run({"x": X}))
    same({"y": second(X)}, {"y": first(X)})
    for facts in (lambda n: [*map(str, (*n.inputs, *n.outputs))], repr, lambda n: n.metadata):
        assert facts(second) == facts(first)
    assert second.used_bytes == first.used_bytes
    found, expected = second.footprint(), first.footprint()
    assert (found.weights, found.workspace) == (expected.weights, expected.workspace)
    assert from_snapshot(second)
    assert len(plans(folder)) == 1


def test_nothing_is_read_planned_or_imported_for_it(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(small())
    program = f"""
import sys
import numpy as np
import leanconv as lc
net = lc.load({str(tmp_path / "net.onnx")!r})
y = net(np.ones((2, 3, 16, 16), "f4"))
ours = [name for name in sys.modules if name.startswith("leanconv.")]
late = ("algorithms", "graph.passes", "graph.ops", "graph.convert", "kernels", "operators",
        "planner", "graph.onnx_import")
print(len(ours), [n for n in ours if n.split("leanconv.")[1].startswith(late)])
print("llvmlite.binding" in sys.modules, y.tobytes().hex())
"""
    settings = {"LEANCONV_CACHE_DIR": str(tmp_path / "c"), "LEANCONV_SNAPSHOT_CACHE_BYTES": "1GiB"}
    first, second = (run_program(program, **settings).stdout.splitlines() for _ in range(2))
    count, late = second[0].split(" ", 1)
    assert late == "[]"
    assert int(count) <= 75 < int(first[0].split(" ", 1)[0])
    assert second[1].split()[0] == "False"
    assert second[1].split()[1] == first[1].split()[1]
    without = {**settings, "LEANCONV_SNAPSHOT_CACHE_BYTES": "0"}
    third = run_program(program, **without).stdout.splitlines()
    assert int(third[0].split(" ", 1)[0]) > 200
    assert third[1].split()[1] == first[1].split()[1]


def answers(net: Network, feeds: Any) -> list[Answers | str]:
    """What a network gives for feeds, or refuses to."""
    found: list[Answers | str] = []
    for feed in feeds:
        try:
            found.append(net.run(feed))
        except lc.LeanConvError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def twice(data: bytes, feeds: Any, **options: Any) -> None:
    """Demand of a second network what the first one gives, from snapshots where that can be.

    And again of what is then planned beside the snapshots, in their memory.
    """
    first = kept(data, **options)
    expected = answers(first, feeds)
    call = first._current
    second = lc.load(data, **options)
    agree(answers(second, feeds), expected)
    if type(call) is not PlannedCall or call.network.program.repeats:
        return
    assert from_snapshot(second)
    snapshot = second.in_use
    assert snapshot.report(front=False) == call.report(front=False)
    assert from_snapshot(second)
    assert second.compiled.used_bytes == snapshot.used_bytes == call.used_bytes
    assert not from_snapshot(second)
    agree(answers(second, feeds), expected)


def agree(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        if isinstance(one, str):
            assert one == other
        else:
            same(one, other)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(60))
def test_random_networks(seed: int) -> None:
    case = RandomNetwork(seed)
    feeds = [feed for feed in case.feeds for _ in range(2)]
    twice(case.proto.SerializeToString(), feeds, threads=1 + seed % 2)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(20))
def test_random_quantised_networks(seed: int) -> None:
    case = QuantisedNetwork(seed, [np.uint8, np.int8][seed % 2])
    twice(case.proto.SerializeToString(), [case.inputs])


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(40))
def test_random_networks_of_which_a_part_is_late_are_what_they_were(seed: int) -> None:
    case = LateNetwork(seed)
    twice(case.proto.SerializeToString(), case.feeds)


@pytest.mark.parametrize("name", ["mobilenetv2", "resnet50", "vgg16"])
def test_known_networks(name: str) -> None:
    data = small_model(name)
    spec = lc.load(data).inputs[0]
    shape = tuple(each if isinstance(each, int) else 2 for each in spec.shape or ())
    x = np.random.default_rng(1).standard_normal(shape).astype("f4")
    twice(data, [{spec.name: x}])


OPTIONS: list[dict[str, Any]] = [
    {"threads": 1},
    {"threads": 3},
    {"dtype": "float64"},
    {"memory_limit": "1 MiB"},
    {"max_error": 1e-4},
    {"reproducible": True},
    {"precision": "bfloat16"},
    {"algorithms": {"stem": "direct"}},
    {"shapes": (2, 3, 16, 16)},
    {"shapes": {"x": [2, 3, 16, 16]}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_are_part_of_the_key(folder: Path, options: dict[str, Any]) -> None:
    feed = {"x": X.astype(options.get("dtype", "float32"))}
    plain = kept(small("H")).run({"x": X})
    twice(small("H"), [feed], **options)
    same(taken(small("H")).run({"x": X}), plain)
    assert len(plans(folder)) == 2


def test_shapes_are_told_apart_and_counted(folder: Path) -> None:
    images = [np.ones((2, 3, 16 + size, 16), "f4") for size in range(0, 40, 4)]
    first = kept(small("H"))
    expected = [first(image) for image in images]
    assert len(plans(folder)) == snapshots._MOST_SHAPES == 8
    second = taken(small("H"))
    for image, answer in zip(images[:8], expected[:8], strict=True):
        assert second(image).tobytes() == answer.tobytes()
    assert from_snapshot(second)
    weights = second.footprint().weights
    assert weights <= first.footprint().weights * 2, "equal constants are in memory once"
    for image, answer in zip(images, expected, strict=True):  # the last two have none
        assert second(image).tobytes() == answer.tobytes()
    assert not from_snapshot(second)
    assert second.footprint().weights == first.footprint().weights


def test_bytes_are_as_predicted_where_shapes_share_constants(folder: Path) -> None:
    """Constants of 20 bytes take 64, in another snapshot's memory as in one's own."""
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"])
    held = {"w": np.ones((5, 3, 3, 3), "f4"), "b": np.ones(5, "f4")}
    data = model([node], {"x": (1, 3, "H", 16)}, ["y"], held).SerializeToString()
    first = kept(data)
    sizes = (16, 20)
    expected = [first(np.ones((1, 3, size, 16), "f4")).tobytes() for size in sizes]
    second = taken(data)
    for size, answer in zip(sizes, expected, strict=True):
        assert second(np.ones((1, 3, size, 16), "f4")).tobytes() == answer
        assert second.used_bytes == second.memory_bytes
    assert from_snapshot(second)
    assert len(plans(folder)) == 2


@pytest.mark.parametrize(
    ("offsets", "shares"),
    [(lambda each: each, True), (lambda each: each * 2, False), (lambda each: [], False)],
)
def test_what_is_planned_beside_snapshots_shares_their_memory(
    folder: Path, offsets: Callable[[list[int]], list[int]], shares: bool
) -> None:
    """Its constants are found by what they are packed from; those of other sizes are not."""
    first = kept(small())
    rewritten(
        plans(folder)[0],
        lambda d: d.update(packings={name: offsets(each) for name, each in d["packings"].items()}),
    )
    second = taken(small())
    snapshot = second.in_use
    planned = second.compiled
    assert bool(snapshot.held.blocks.keys() & planned.held.blocks.keys()) == shares
    same({"y": second(X)}, {"y": first(X)})
    assert second.used_bytes == second.memory_bytes == first.used_bytes


def test_what_a_snapshot_lacks_is_planned_when_it_is_asked_for() -> None:
    first = kept(small())
    asked: list[Callable[[Network], object]] = [
        lambda net: net.explain(),
        lambda net: net.report(front=False),
        lambda net: net.compiled.explain(),
        lambda net: net.bind((2, 3, 16, 16)).memory_bytes,
        lambda net: len(net.profile(X, repeats=1)),
        lambda net: [step.name for step in net.plan.steps],
        lambda net: net.backend.model.bytes,
    ]
    for ask in asked:
        second = taken(small())
        assert ask(second) == ask(first)
        assert not from_snapshot(second)
        assert second(X).tobytes() == first(X).tobytes()
        assert second.used_bytes == first.used_bytes == second.plan.memory_bytes


def test_plans_of_one_of_several_shapes_are_the_last_ones() -> None:
    shapes = [(2, 3, 16, 16), (2, 3, 20, 16)]
    first = kept(small("H"))
    for shape in shapes:
        first(np.ones(shape, "f4"))
    second = taken(small("H"))
    with pytest.raises(lc.InputError, match="run the network first"):
        second.used_bytes  # noqa: B018
    for shape in shapes:
        second(np.ones(shape, "f4"))
    assert second.plan.inputs["x"].shape == shapes[1]


def test_copies_and_pickles_are_planned_and_have_its_bits() -> None:
    expected = kept(small())(X)

    def pickled(net: Network) -> Network:
        return pickle.loads(pickle.dumps(net))  # type: ignore[no-any-return]

    ways: tuple[Callable[[Network], Network], ...] = (copy.copy, copy.deepcopy, pickled)
    for make in ways:
        second = taken(small())
        made = make(second)
        for net in (made, second):
            assert net(X).tobytes() == expected.tobytes()
            assert "small" in repr(net.backend.model) or net.plan.steps


@pytest.mark.parametrize("shapes", [(2, 3, 18, 18), {"x": (2, 3, 18, 18)}])
def test_specialised_networks_are_kept_too(shapes: Any) -> None:
    """The network that they come from is known then, though it was planned for no shape itself."""
    x = np.ones((2, 3, 18, 18), "f4")
    first = kept(small("H")).specialise(shapes)
    one = taken(small("H"))
    second = one.specialise(shapes)
    assert from_snapshot(second)
    assert from_snapshot(one)
    same({"y": second(x)}, {"y": first(x)})
    same({"y": taken(small("H"), shapes=shapes)(x)}, {"y": first(x)})
    assert second.memory_bytes == first.plan.memory_bytes == second.used_bytes
    assert not from_snapshot(taken(small("H")).specialise((2, 3, 18, 17)))
    again = taken(small("H"), shapes=shapes).specialise(shapes)  # of one that is fixed
    same({"y": again(x)}, {"y": first(x)})
    assert second.explain() == first.explain()


def test_a_network_of_a_snapshot_is_made_ready_without_a_plan() -> None:
    first = kept(small("H"))
    first.prepare((2, 3, 16, 16))
    second = taken(small("H"))
    with pytest.raises(lc.InputError, match="run the network first"):
        second.memory_bytes  # noqa: B018
    second.prepare({"x": (2, 3, 16, 16)})
    assert from_snapshot(second)
    assert second.memory_bytes == second.used_bytes == first.plan.memory_bytes
    second.prepare((2, 3, 20, 16))
    assert not from_snapshot(second)
    with pytest.raises(lc.InputError):
        second.prepare((2, 3, 16))


# -- what is not kept ---------------------------------------------------------------------------
def external(path: Path, scale: float) -> Path:
    weights = np.full((4, 3, 3, 3), scale, "f4")
    weights.tofile(path.with_suffix(".bin"))
    proto = model(
        [helper.make_node("Conv", ["x", "w"], ["y"])], {"x": X.shape}, ["y"], {"w": weights}
    )
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", path.with_suffix(".bin").name
    path.write_bytes(proto.SerializeToString())
    return path


def test_data_beside_the_file_may_change(folder: Path, tmp_path: Path) -> None:
    one = lc.load(external(tmp_path / "net.onnx", 1.0))(X)
    two = lc.load(external(tmp_path / "net.onnx", 2.0))(X)
    np.testing.assert_allclose(two, 2 * one, rtol=1e-5)
    assert not plans(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"tune": True},
        {"stream_weights": True},
        {"samples": X},
        {"shapes": (2, 3, (16, 20), 16)},
        {"weights": {}},
        {"shared_weights": True},
    ],
    ids=str,
)
def test_other_options_keep_none(
    folder: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "shared_weights" in options:
        options = {"shared_weights": tmp_path / "w"}
    for _ in range(2):
        net = lc.load(small("H"), **options)
        net(X)
        assert not from_snapshot(net)
    assert not plans(folder)


def test_a_plan_file_keeps_none(folder: Path, tmp_path: Path) -> None:
    net = kept(small())
    net.plan.save(tmp_path / "plan.json")
    before = plans(folder)
    assert not from_snapshot(lc.load(small(), plan=tmp_path / "plan.json"))
    assert plans(folder) == before


def test_kernels_of_others_keep_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "ours", lambda kernel: False)
    kept(small())
    assert not plans(folder)


def test_wrong_options_are_refused_as_without(folder: Path) -> None:
    kept(small())
    wrong: list[dict[str, Any]] = [
        {"threads": 0},
        {"dtype": "int8"},
        {"memory_limit": "much"},
        {"precision": "float16", "dtype": "float64"},
        {"progress": 3},
        {"device": "tpu"},
        {"algorithms": {"nothing": "direct"}},
        {"memory_limit": 1},
        {"shapes": (1, 2)},
        {"shapes": {"z": (2, 3, 16, 16)}},
    ]
    for options in wrong:
        found = []
        for _ in range(2):
            with pytest.raises(lc.LeanConvError) as error:
                lc.load(small(), **options)
            found.append(str(error.value))
        assert found[0] == found[1]
    for source in ("nowhere.onnx", "/", "a\0b", b"", 3):
        with pytest.raises(lc.LeanConvError):
            lc.load(source)


def test_arrays_are_refused_as_without() -> None:
    first, second = kept(small()), taken(small())
    wrong = (X[:1], X.astype("f8"), [1], {"z": X}, X.transpose(0, 2, 3, 1))
    for each in wrong:
        texts = []
        for net in (first, second):
            with pytest.raises(lc.LeanConvError) as error:
                net.run(each) if isinstance(each, dict) else net(each)  # type: ignore[arg-type]
            texts.append(str(error.value))
        assert texts[0] == texts[1]
    strided = np.repeat(X, 2, axis=-1)[..., ::2]
    assert second(strided).tobytes() == first(X).tobytes()
    assert from_snapshot(second)


# -- damage -------------------------------------------------------------------------------------
def test_damage_is_a_miss(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = kept(small())(X)
    draw, damages = Random(7), 0
    for path in sorted(folder.iterdir()):
        body = path.read_bytes()
        places = [*range(0, 90, 12), *(draw.randrange(len(body)) for _ in range(16))]
        wrong = [
            body[:at] + bytes([body[at] ^ 1 << draw.randrange(8)]) + body[at + 1 :]
            for at in places
            if at < len(body)
        ]
        wrong += [body[:at] for at in (0, 1, 71, 72, 73, len(body) // 2, len(body) - 1)]
        wrong += [b"\0" * len(body), b"x" * 100, body[:-64] + bytes(64)]
        for data in wrong:
            path.write_bytes(data)
            caplog.clear()
            net = lc.load(small())
            assert net(X).tobytes() == expected.tobytes()
            if from_snapshot(net):  # of padding, which nothing reads
                assert not caplog.records
                continue
            damages += 1
            assert "damaged" in caplog.text
            assert path.read_bytes() == body, "it is made anew"
    assert damages > 40


def test_a_checksum_sees_what_is_exchanged_or_lost() -> None:
    body = np.random.default_rng(2).integers(0, 256, _PIECE + 5 * 8192 + 100, np.uint8)

    def checksum(array: np.ndarray) -> str:
        return _checksum(array[at : at + _PIECE].data for at in range(0, len(array), _PIECE))

    def exchanged(one: int, other: int, size: int) -> np.ndarray:
        made = body.copy()
        made[one : one + size], made[other : other + size] = (
            body[other : other + size],
            body[one : one + size],
        )
        return made

    wrong = [
        exchanged(0, 8, 8),  # in a row
        exchanged(0, 8192, 8),  # in a column
        exchanged(0, 8192, 8192),  # rows
        exchanged(0, _PIECE, 8192),  # in another piece
        exchanged(len(body) - 20, len(body) - 40, 10),  # behind the last row
        body[:-1],
    ]
    lost = body.copy()
    lost[4096:8192] = 0
    found = {checksum(each) for each in (body, lost, *wrong)}
    assert len(found) == 2 + len(wrong)


def test_another_networks_snapshot_is_damage(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = kept(small())(X)
    mine = plans(folder)[0]
    kept(small_cnn(seed=3, batch=2).SerializeToString())(X)
    other = next(path for path in plans(folder) if path != mine)
    mine.write_bytes(other.read_bytes())
    net = lc.load(small())
    assert not from_snapshot(net)
    assert net(X).tobytes() == expected.tobytes()
    assert "damaged" in caplog.text


def test_another_processor_version_or_number_of_threads_has_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(small())
    assert from_snapshot(lc.load(small()))
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "default_threads", lambda: 7)
        kept(small())
    with monkeypatch.context() as patched:
        patched.setattr(np, "__version__", "0.1")
        kept(small())
    with monkeypatch.context() as patched:
        patched.setattr("leanconv.codegen.keys.network_hash", lambda: "other sources")
        kept(small())
    target = planning_target()
    other = replace(target, l2_bytes=target.l2_bytes * 2)
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "planning_target", lambda: other)
        patched.setattr(snapshots, "check_runs_here", lambda target: None)
        asked = Snapshots.of(small(), GIVEN)
        assert asked is not None
        assert asked.network(lambda _: pytest.fail("nothing is planned")) is None
    assert from_snapshot(lc.load(small()))


def test_a_folder_or_file_of_others_is_a_miss(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = kept(small())(X)
    folder.chmod(0o777)
    net = lc.load(small())
    assert not from_snapshot(net)
    assert net(X).tobytes() == expected.tobytes()
    folder.chmod(0o700)
    taken(small())
    for path in plans(folder):
        path.chmod(0o622)
    assert not from_snapshot(lc.load(small()))
    assert "expected owner" in caplog.text
    taken(small())
    for path in plans(folder):
        path.unlink()
        path.symlink_to("/dev/zero")
    assert not from_snapshot(lc.load(small()))
    taken(small())


def test_code_that_is_gone_is_a_miss(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = kept(small())(X)
    empty = DiskCache(tmp_path / "objects")
    with monkeypatch.context() as patched:
        patched.setattr("leanconv.codegen.compiler.object_cache", lambda: empty)
        patched.setattr("leanconv.codegen.compiler.loaded", lambda key: None)
        net = lc.load(small())
        assert not from_snapshot(net)
        assert net(X).tobytes() == expected.tobytes()
    assert not caplog.records


def rewritten(path: Path, change: Callable[[Any], object]) -> None:
    """A snapshot with another description, whose digest is right."""
    body = path.read_bytes()
    _, size, _ = _HEAD.unpack_from(body)
    description = json.loads(body[_HEAD.size :][:size])
    change(description)
    text = json.dumps(description, separators=(",", ":")).encode()
    path.write_bytes(_head(path.name, text) + body[aligned(_HEAD.size + size) :])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a description."""
    yield path
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in pairs:
        yield from leaves(each, (*path, key))


def test_a_forged_description_is_a_miss_or_harmless(folder: Path) -> None:
    """Whatever stands where something else should: nothing is raised, nothing reads elsewhere."""
    net = kept(small())
    network: Any = net.compiled.network  # type: ignore[attr-defined]
    sizes = [kind.bytes for kind in (*network.inputs.values(), *network.results.values())]
    constants = {*network.constants}
    data = json.loads(json.dumps(described(network.program)))
    assert program_of(data, constants, sizes) == network.program
    draw, refused = Random(3), 0
    others: tuple[Any, ...] = (
        -1,
        -3,
        1 << 40,
        1 << 70,
        None,
        True,
        1.5,
        "x",
        [],
        {},
        [[]],
        float("nan"),
    )
    places = [*leaves(data)][1:]
    for path, other in itertools.product(draw.sample(places, min(400, len(places))), others):
        forged = copy.deepcopy(data)
        inside = forged
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = other
        try:
            found = program_of(forged, constants, sizes)
        except WRONG:
            refused += 1
        else:
            check_places(found, constants, sizes)
    assert refused > 1000


def check_places(program: PortableProgram, constants: set[int], sizes: list[int]) -> None:
    for stage in program.stages:
        form: Any = stage.kernel
        assert stage.scratch is None or (
            stage.scratch.offset + program.threads * form.scratch_bytes <= program.arena_bytes
        )
        for operand in stage.operands:
            if isinstance(operand, Constant):
                assert operand.offset in constants
            elif isinstance(operand, Place):
                assert 0 <= operand.offset <= program.arena_bytes
            else:
                assert isinstance(operand, Slot)
                assert 0 <= operand.offset <= sizes[operand.number]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("program"),
        lambda d: d.pop("constants"),
        lambda d: d["constants"].pop(),
        lambda d: d["constants"].append([0, 1 << 40, 0, "", ""]),
        lambda d: d["constants"].append([0, -1, 0, "", ""]),
        lambda d: d["constants"].append(3),
        lambda d: d["constants"][-1].__setitem__(2, 0),
        lambda d: d["inputs"].pop(),
        lambda d: d["results"][0].__setitem__(2, "complex128"),
        lambda d: d["inputs"][0].__setitem__(1, [2, 3, 16, 17]),
        lambda d: d["program"].__setitem__("forms", ["../../etc/passwd"]),
        lambda d: d["program"].__setitem__("forms", [3]),
        lambda d: d["program"]["stages"].append([[]] * 8),
        lambda d: d.__setitem__("empty", 3),
        lambda d: d.pop("packings"),
        lambda d: d.__setitem__("packings", [3]),
        lambda d: d["packings"].__setitem__("x", 3),
        lambda d: d["packings"].__setitem__("x", [-1]),
        lambda d: d.clear(),
    ],
)
def test_a_description_that_fits_nothing_is_a_miss(
    folder: Path, change: Callable[[Any], object]
) -> None:
    expected = kept(small())(X)
    rewritten(plans(folder)[0], lambda d: None)
    taken(small())
    rewritten(plans(folder)[0], change)
    net = lc.load(small())
    assert net(X).tobytes() == expected.tobytes()
    assert not from_snapshot(net)
    taken(small())


# -- files and processes ------------------------------------------------------------------------
def test_a_file_that_is_written_to_is_an_error_only_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    proto = small_cnn(batch=2)
    proto.doc_string = "x" * 2_000_000  # so that it is mapped
    path.write_bytes(proto.SerializeToString())
    expected = kept(path)(X)
    net = lc.load(path)
    body = bytearray(path.read_bytes())
    body[-1000] ^= 1
    net(X)
    with path.open("r+b") as file:
        file.write(body)
    assert net(X).tobytes() == expected.tobytes()
    with pytest.raises(lc.InputError, match="has been written to"):
        net.explain()
    assert net(X).tobytes() == expected.tobytes()


def test_a_file_that_changes_while_it_is_loaded_is_kept_as_what_was_read(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.onnx"
    protos = [small_cnn(seed=seed, batch=2) for seed in (0, 9)]
    for proto in protos:
        proto.doc_string = "x" * 2_000_000
    one, two = (proto.SerializeToString() for proto in protos)
    path.write_bytes(one)
    real = Snapshots.network

    def network(self: Snapshots, planning: Any) -> Network | None:
        found = real(self, planning)
        change()
        return found

    monkeypatch.setattr(Snapshots, "network", network)

    def replace_file() -> None:
        (tmp_path / "new").write_bytes(two)
        (tmp_path / "new").replace(path)

    def overwrite_file() -> None:
        with path.open("r+b") as file:
            file.write(two)

    change: Callable[[], object] = replace_file
    found = kept(path)(X)
    change = lambda: None  # noqa: E731
    assert found.tobytes() == taken(one)(X).tobytes()
    assert len(plans(folder)) == 1
    path.write_bytes(one[:-1] + b"y")
    change = overwrite_file
    kept(path)(X)
    assert len(plans(folder)) == 1


def test_a_file_that_is_replaced_or_removed_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(small())
    first = kept(path)
    net = lc.load(path)
    other = tmp_path / "other.onnx"
    other.write_bytes(small_cnn(seed=9, batch=2).SerializeToString())
    other.replace(path)
    assert net.explain() == first.explain()
    net = kept(path)
    path.unlink()
    assert net(X).shape == first(X).shape


def test_names_and_places_of_files_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(small())
    expected = kept(path)(X)
    for source in (path.rename(tmp_path / "other.onnx"), small(), small_cnn(batch=2)):
        net = lc.load(source)
        assert net(X).shape == expected.shape


def test_the_folder_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = kept(small())(X)
    size = sum(path.stat().st_size for path in folder.iterdir())
    settings = Settings(cache_dir=folder.parent, snapshot_cache_bytes=size * 5 // 2)
    monkeypatch.setattr(snapshots, "current_settings", lambda: settings)
    for seed in range(1, 8):
        kept(small_cnn(seed=seed, batch=2).SerializeToString())(X)
        os.utime(plans(folder)[0])
        assert sum(path.stat().st_size for path in folder.iterdir()) <= size * 5 // 2
    assert lc.load(small())(X).tobytes() == one.tobytes()
    none = Settings(cache_dir=folder.parent / "none")
    for settings in (
        replace(none, snapshot_cache_bytes=0),
        replace(none, cache_bytes=0),
        replace(none, snapshot_cache_bytes=1000),
    ):
        monkeypatch.setattr(snapshots, "current_settings", lambda settings=settings: settings)
        for _ in range(2):
            kept(small())
        assert not plans(folder.parent / "none" / "snapshots")


def test_a_folder_that_cannot_be_made_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    settings = Settings(cache_dir=tmp_path / "file")
    monkeypatch.setattr(snapshots, "current_settings", lambda: settings)
    assert kept(small())(X).tobytes() == kept(small())(X).tobytes()


def test_threads_load_and_run_at_once(folder: Path) -> None:
    expected = kept(small())(X).tobytes()
    shared, wrong = taken(small()), []

    def work() -> None:
        for _ in range(5):
            for net in (shared, lc.load(small())):
                if net(X).tobytes() != expected:
                    wrong.append(net)

    team = [threading.Thread(target=work) for _ in range(4)]
    for each in team:
        each.start()
    shared.explain()  # while others run it
    for each in team:
        each.join()
    assert not wrong


_LOADS = """
import sys
import numpy as np
import leanconv as lc
seen = set()
for _ in range(6):
    net = lc.load(sys.argv[1])
    seen.add(net(np.ones((2, 3, 16, 16), "f4")).tobytes())
print(len(seen), hash(seen.pop()) and type(net._backend).__name__)
"""


def test_processes_write_and_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(small("H"))
    environment = {
        **os.environ,
        "LEANCONV_CACHE_DIR": str(tmp_path / "c"),
        "LEANCONV_SNAPSHOT_CACHE_BYTES": "1 GiB",
    }
    command = [sys.executable, "-c", _LOADS, str(path)]
    team = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for each in team:
        out, err = each.communicate(timeout=300)
        assert out == "1 SnapshotBackend\n", err
        assert not err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_runs_and_plans_it() -> None:
    first = kept(small())
    expected, text = first(X).tobytes(), first.explain()
    net = taken(small(), threads=None)
    net(X)
    child = os.fork()
    if not child:
        good = net(X).tobytes() == expected and net.explain() == text
        os._exit(0 if good and net(X).tobytes() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert net(X).tobytes() == expected
    assert from_snapshot(net)


def test_memory_that_is_not_there_is_an_error_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    kept(small())

    def block(size: int) -> Any:
        raise lc.OutOfMemoryError("none is left")

    monkeypatch.setattr(snapshots, "Block", block)
    with pytest.raises(lc.OutOfMemoryError, match="none is left"):
        lc.load(small())


def test_nothing_is_said_where_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        kept(small())(X)
        taken(small())(X)
    assert not caplog.records
