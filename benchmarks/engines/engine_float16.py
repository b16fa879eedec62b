"""leanconv with weights, and values between layers, in float16."""

from __future__ import annotations

from functools import partial

from engines import engine_bfloat16

load = partial(engine_bfloat16.load, precision="float16")
