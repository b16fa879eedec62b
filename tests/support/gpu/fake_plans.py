"""Plans on the driver that records."""

from __future__ import annotations

from typing import Any

import numpy as np

from leanconv.gpu.conv import DeviceConvPlan
from leanconv.gpu.device.driver import Driver
from leanconv.spec import ConvSpec
from support.gpu.fake_cuda import FakeCuda

SPEC = ConvSpec.parse("mb2ic16ih9oc24kh3ph1", layout="NHWC", bias=True)
W, BIAS = np.ones(SPEC.weight_shape, np.float32), np.ones(24, np.float32)


def plan_on(fake: FakeCuda, spec: ConvSpec = SPEC, **changes: Any) -> DeviceConvPlan:
    given: dict[str, Any] = {
        "algorithm": None,
        "memory_limit": None,
        "max_error": None,
        "precision": None,
    }
    given.update(changes)
    w = np.ones(spec.weight_shape, spec.dtype if spec.dtype != "bfloat16" else np.float32)
    bias = np.ones(spec.out_channels, w.dtype) if spec.bias else None
    return DeviceConvPlan(
        spec, w, bias, None, driver=Driver(fake), compile_code=fake.compile, **given
    )
