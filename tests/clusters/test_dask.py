"""Networks on Dask: the bits of one process, on threads and on processes that are killed."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.errors import (
    BudgetError,
    InputError,
    MissingExtraError,
    SpecError,
    UnsupportedError,
)
from support.local_networks import local_network
from support.onnx_models import model
from support.pruned_networks import chain
from support.waiting import HANG_S, wait_until

da = pytest.importorskip("dask.array", reason="dask is not installed: leanconv[dask]")
db = pytest.importorskip("dask.bag", reason="dask is not installed: leanconv[dask]")
distributed = pytest.importorskip("distributed", reason="leanconv[dask] is not installed")

from leanconv.dask import (  # noqa: E402
    map_bag,
    map_network,
    workers,
)

pytestmark = pytest.mark.once


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def net_of(seed: int = 0, rank: int = 2) -> lc.Network:
    return lc.load(local_network(seed, rank), threads=1)


# -- in this process -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rank", "shape", "blocks"),
    [
        (1, (2, 3, 104), (1, 3, 23)),
        (2, (2, 3, 56, 72), (2, 2, 31, 19)),
        (2, (1, 3, 64, 48), (1, 3, 64, 48)),
        (3, (1, 3, 24, 24, 32), (1, 1, 9, 24, 17)),
    ],
)
def test_bits_are_those_of_the_whole_image(
    rank: int, shape: tuple[int, ...], blocks: tuple[int, ...]
) -> None:
    net, x = net_of(0, rank), image(*shape)
    y = map_network(net, da.from_array(x, chunks=blocks), tile=20)
    expected = lc.tiled(net, tile=20)
    assert isinstance(y, da.Array)
    assert y.npartitions > 2
    found = y.compute()
    assert found.dtype == y.dtype
    np.testing.assert_array_equal(found, expected.whole(x))
    part = (slice(None), slice(None), *(slice(7, 30),) * rank)
    np.testing.assert_array_equal(y[part].compute(), found[part])  # its windows alone


def test_a_pruned_network() -> None:
    net = lc.load(chain((0.95, 0.9), k=3, channels=16, sizes=("H", "W")), threads=1)
    x = image(1, 16, 70, 60)
    y = map_network(net, da.from_array(x, chunks=(1, 16, 31, 40)), tile=40)
    np.testing.assert_array_equal(y.compute(scheduler="threads"), net(x))
    sent = pickle.loads(pickle.dumps(workers.worker_network(net)))
    assert isinstance(sent, workers.WorkerNetwork)


def test_arrays_that_workers_open_themselves(tmp_path: Path) -> None:
    net, x = net_of(), image(1, 3, 56, 72)
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", x.dtype, x.shape)
    mapped[:] = x
    mapped.flush()
    expected = lc.tiled(net, tile=24).whole(x)
    for given in (mapped, x, _Stored(x)):
        y = map_network(net, given, tile=24)
        np.testing.assert_array_equal(y.compute(scheduler="sync"), expected)
    assert len(pickle.dumps(dict(map_network(net, mapped, tile=24).dask))) < 10 * x.nbytes


def test_a_slice_of_a_mapped_file_is_sent_by_its_name(tmp_path: Path) -> None:
    net, whole = net_of(), image(2, 3, 80, 90)
    for order in ("C", "F"):
        np.save(tmp_path / f"{order}.npy", np.asarray(whole, order=order))
        mapped = np.load(tmp_path / f"{order}.npy", mmap_mode="r")
        slices = (mapped[1:, :, 9:65, 5:77], mapped[:1, ::-1, 70:14:-1, ::2], np.asarray(mapped))
        for x in slices:
            y = map_network(net, x, tile=24)
            assert x[0, 0, 0].tobytes() not in pickle.dumps(dict(y.dask))
            np.testing.assert_array_equal(y.compute(scheduler="sync"), lc.tiled(net).whole(x))
    private = np.load(tmp_path / "C.npy", mmap_mode="c")[:1]
    private[:] = 1  # which the file does not hold
    y = map_network(net, private, tile=24)
    np.testing.assert_array_equal(y.compute(scheduler="sync"), lc.tiled(net).whole(private))


class _Stored:
    """An array of somebody else: shape, dtype, slices."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        return self._array[index]


def several() -> lc.Network:
    """Two inputs and two outputs, of unequal sizes."""
    w = np.random.default_rng(1).uniform(-0.3, 0.3, (8, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Add", ["h", "small"], ["half"]),
        helper.make_node("Resize", ["half", "", "s"], ["full"], mode="linear"),
    ]
    inputs = {"x": [1, 3, "H", "W"], "small": [1, 8, "h", "w"]}
    constants = {"w": w, "s": np.array([1, 1, 2, 2], np.float32)}
    return lc.load(model(nodes, inputs, ["half", "full"], constants), threads=1)


def test_several_inputs_and_outputs() -> None:
    net = several()
    given = {"x": image(1, 3, 64, 48), "small": image(1, 8, 32, 24)}
    blocks = {name: da.from_array(array, chunks=(1, 3, 17, 11)) for name, array in given.items()}
    found = map_network(net, tile=24, **blocks)
    expected = lc.tiled(net, tile=24).whole(**given)
    assert list(found) == ["half", "full"]
    assert found["full"].npartitions == found["half"].npartitions > 2
    both = da.compute(*found.values(), scheduler="sync")
    for name, array in zip(found, both, strict=True):
        np.testing.assert_array_equal(array, expected[name])
    np.testing.assert_array_equal(found["half"].compute(), expected["half"])
    mixed = map_network(net, blocks["x"], given["small"], tile=24)
    np.testing.assert_array_equal(mixed["full"].compute(), expected["full"])


def test_refusals() -> None:
    net, x = net_of(), da.zeros((1, 3, 64, 64), dtype=np.float32, chunks=32)
    with pytest.raises(InputError, match="unknown extents.*compute_chunk_sizes"):
        map_network(net, x[x[:, 0, 0, 0] > 0])
    with pytest.raises(InputError, match="expected float32"):
        map_network(net, x.astype(np.float64))
    with pytest.raises(InputError, match="got 2 arrays"):
        map_network(net, x, x)
    with pytest.raises(BudgetError):
        map_network(net, x, memory_limit=1000)
    with pytest.raises(SpecError, match="threads"):
        map_network(net, x, threads=0)
    with pytest.raises(SpecError, match="expected a network"):
        map_network("net.onnx", x)
    with pytest.raises(SpecError, match="expected a network"):
        map_bag("net.onnx", db.from_sequence([1]))
    with pytest.raises(SpecError, match="expected a Dask bag"):
        map_bag(net, [x])
    pooled = model(
        [helper.make_node("GlobalMaxPool", ["x"], ["y"])], {"x": [1, 3, "H", "W"]}, ["y"]
    )
    with pytest.raises(UnsupportedError, match="GlobalMaxPool"):
        map_network(lc.load(pooled), x)
    assert map_network(net, x[:0]).compute().shape[0] == 0


def test_a_worker_whose_cpu_gives_other_bits_refuses() -> None:
    *sent, _ = workers.worker_network(net_of())._sent
    other = workers.WorkerNetwork(*sent, ("avx9", 128))
    with pytest.raises(UnsupportedError, match="avx9 with vectors of 128 bytes.*LEANCONV_TARGET"):
        other.run({})


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"leanconv\[dask\]"):
        importlib.reload(lc.dask)


def test_copies_in_a_process_are_one_network() -> None:
    net = net_of()
    sent = workers.worker_network(net)
    assert workers.worker_network(net) is sent
    assert pickle.loads(pickle.dumps(sent)) is sent
    assert workers.worker_network(net_of(3)) is not sent


def test_bags_of_images() -> None:
    net, images = net_of(), [image(1, 3, 32, 24 + 8 * (n % 2)) for n in range(4)]
    found = map_bag(net, db.from_sequence(images)).compute(scheduler="sync")
    for x, y in zip(images, found, strict=True):
        np.testing.assert_array_equal(y, net(x))
    pair, given = several(), {"x": image(1, 3, 16, 16), "small": image(1, 8, 8, 8)}
    (one,) = map_bag(pair, db.from_sequence([given])).compute(scheduler="sync")
    assert one.keys() == {"half", "full"}


# -- on processes ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two worker processes of one thread each."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_a_process_holds_a_network_once(client: Any) -> None:
    net, x = net_of(), da.from_array(image(1, 3, 160, 160), chunks=(1, 3, 40, 40))
    y = map_network(net, x, tile=24)
    first, again = client.compute(y).result(HANG_S), client.compute(y + 0).result(HANG_S)
    np.testing.assert_array_equal(first, again)

    def held() -> tuple[int, int]:
        from leanconv.dask import workers

        made = [each._network for each in workers._living.values() if each._network]
        return len(made), sum(each.backend.threads for each in made)

    assert set(client.run(held).values()) <= {(1, 1), (0, 0)}
    bag = map_bag(net, db.from_sequence([image(1, 3, 32, 32)] * 4, npartitions=4))
    for found in client.compute(bag).result(HANG_S):
        np.testing.assert_array_equal(found, net(image(1, 3, 32, 32)))


def test_a_killed_worker_loses_nothing(client: Any, tmp_path: Path) -> None:
    net, x = net_of(), image(1, 3, 160, 160)
    begun, killed = tmp_path / "begun", tmp_path / "killed"
    begun.mkdir()

    def slowly(block: np.ndarray) -> np.ndarray:
        """Of 25 blocks most wait for the kill."""
        (begun / f"{os.getpid()} {time.monotonic_ns()}").touch()
        while len(os.listdir(begun)) > 8 and not killed.exists():
            time.sleep(0.01)
        return block

    blocks = da.from_array(x, chunks=(1, 3, 32, 32)).map_blocks(slowly, meta=x)
    future = client.compute(map_network(net, blocks, tile=24))
    wait_until(lambda: len(os.listdir(begun)) > 8)
    assert not future.done()
    os.kill(int(min(os.listdir(begun)).split()[0]), signal.SIGKILL)
    killed.touch()
    found = future.result(timeout=HANG_S)
    np.testing.assert_array_equal(found, lc.tiled(net, tile=24).whole(x))
