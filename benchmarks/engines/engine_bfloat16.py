"""leanconv with weights, and values between layers, in bfloat16."""

from __future__ import annotations

from functools import partial

from leanconv.cli.engines import engine_leanconv

load = partial(engine_leanconv.load, precision="bfloat16")
