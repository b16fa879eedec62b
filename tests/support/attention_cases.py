"""Attention and rotary embeddings: cases of one node each."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.import_cases import Cases, Numbers
from support.onnx_models import Const

normal = Numbers(23).normal
CASES = Cases()
case = CASES.add

Q, K, V = normal(2, 4, 3, 8), normal(2, 4, 5, 8), normal(2, 4, 5, 6)
GROUPED = (normal(2, 6, 3, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 6))
FLAT = (normal(2, 3, 24), normal(2, 5, 16), normal(2, 5, 16))
HEADS = {"q_num_heads": 3, "kv_num_heads": 2}
PAST = (normal(2, 4, 7, 8), normal(2, 4, 7, 6))
SEEN = normal(3, 5) > 0
SEEN[:, 0] = True
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"is_causal": 1},
    {"scale": 0.3},
    {"softcap": 2.0},
    {"is_causal": 1, "softcap": 0.5, "scale": 0.7},
)
for number, settings in enumerate(SETTINGS):
    case(f"plain{number}", (23,), "Attention", Q, K, V, **settings)
    case(f"groups{number}", (23,), "Attention", *GROUPED, **settings)
    case(f"mask{number}", (23,), "Attention", Q, K, V, normal(3, 5), **settings)
    case(f"held{number}", (23,), "Attention", Q, K, V, Const(normal(1, 4, 3, 5)), **settings)
    case(f"seen{number}", (23,), "Attention", Q, K, V, SEEN, **settings)
flat = {"q_num_heads": 3, "kv_num_heads": 1}
case("flat", (23,), "Attention", normal(2, 3, 24), normal(2, 5, 8), normal(2, 5, 9), **flat)
flat = {"q_num_heads": 4, "kv_num_heads": 2}
case("flat-groups", (23,), "Attention", normal(2, 3, 32), *FLAT[1:], is_causal=1, **flat)

COS, SIN = np.cos(normal(20, 4)), np.sin(normal(20, 4))
AT = np.array([[0, 5, 19], [2, 2, 7]], np.int64)
for number in range(2):
    turned = {"interleaved": number}
    case(f"places{number}", (23,), "RotaryEmbedding", Q, Const(COS), Const(SIN), AT, **turned)
    case(f"plain{number}", (23,), "RotaryEmbedding", Q, COS[AT], SIN[AT], **turned)
    part = {"rotary_embedding_dim": 4, **turned}
    case(f"part{number}", (23,), "RotaryEmbedding", Q, COS[AT][..., :2], SIN[AT][..., :2], **part)
    whole = {"num_heads": 3, **turned}
    case(f"flat{number}", (23,), "RotaryEmbedding", FLAT[0], COS, SIN, AT, **whole)

TESTED = {parameters.values[0] for parameters in CASES}
