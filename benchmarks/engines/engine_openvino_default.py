"""OpenVINO as it is by default: in bfloat16 where the CPU has matrix tiles for it."""

from __future__ import annotations

from functools import partial

from leanconv.cli.engines import engine_openvino

load = partial(engine_openvino.load, precision=None)
