"""`leanconv.dask.map_bag`: a network over many images, such as those of folders."""

from __future__ import annotations

from typing import Any

import dask
import dask.bag as db

from leanconv.api.network import Network
from leanconv.dask.workers import WorkerNetwork, worker_network
from leanconv.errors import SpecError


def map_bag(net: Network, bag: Any) -> Any:
    """Make the results of a network for every element of a Dask bag, which is not computed.

    Each process holds the network's weights once, and runs one element at a time, with as many
    threads as `net` has. Each element gets the bits that `net` gives in this process, on CPUs of
    the same instruction set.

    Args:
        net: a network for the CPU, from `leanconv.load`. What takes part in its plans (threads,
            limits) is sent with it: load it with `threads=1` for workers of one thread each.
        bag: of arrays such as the network takes, or of dictionaries of all inputs by name.

    Returns:
        A bag of outputs, each an array; of a network of several outputs a dictionary by name.

    Raises:
        SpecError: an argument makes no sense.
    """
    if not isinstance(bag, db.Bag):
        raise SpecError(
            f"bag is {type(bag).__name__}; expected a Dask bag, such as "
            "dask.bag.from_sequence(files).map(read_image)"
        )
    network = dask.delayed(worker_network(net), pure=True, traverse=False)
    return bag.map(_outputs, network=network)


def _outputs(element: Any, network: WorkerNetwork) -> Any:
    """What a network gives for one element of a bag."""
    found = network.run_on(element)
    return next(iter(found.values())) if len(found) == 1 else found
