"""Networks on Dask: over arrays larger than memory, and over many images, on many processes.

    import dask.array as da
    import leanconv.dask

    y = leanconv.dask.map_network(net, da.from_zarr("scene.zarr"))  # a Dask array, lazily
    scores = leanconv.dask.map_bag(net, images)  # of a bag of arrays

Dask schedules, on threads, processes or a cluster, and runs again what was lost with a worker.
leanconv says which part of the image each window reads, and which of its results are right. It
needs the extra `leanconv[dask]`.
"""

from __future__ import annotations

from importlib.util import find_spec

from leanconv.errors import MissingExtraError

if find_spec("dask") is None:
    raise MissingExtraError(
        "leanconv.dask needs Dask, which is not installed: pip install 'leanconv[dask]'"
    )

from leanconv.dask.maps import map_bag, map_network

__all__ = ["map_bag", "map_network"]
