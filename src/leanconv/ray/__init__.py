"""Networks over Ray's datasets: `leanconv.ray.map_network(net, dataset)`.

Ray starts actors, hands them batches of rows and starts others where some are killed; here is what
it cannot know: how many rows fit a memory limit, whether rows may be computed together, and that
every actor has the bits of one process. It needs the extra `leanconv[ray]`.
"""

from __future__ import annotations

from importlib.util import find_spec

from leanconv.errors import MissingExtraError

if find_spec("ray") is None or find_spec("pyarrow") is None:
    raise MissingExtraError(
        "leanconv.ray needs the packages ray and pyarrow: pip install 'leanconv[ray]'"
    )

from leanconv.ray.batch_plan import BatchPlan, plan_batches
from leanconv.ray.datasets import Predictor, arguments, map_network

__all__ = ["BatchPlan", "Predictor", "arguments", "map_network", "plan_batches"]
