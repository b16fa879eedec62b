"""The cases of `operators.py`: every operator that leanconv takes, in some sizes, axes and types.

A row of `ROWS` is for the operators named before its cases; `com.microsoft` ones have that prefix.
A case is a line of words:

- `1x64x56x56` is an input of float32, drawn from the normal distribution; `i64:64x8` one of another
  type; `u8:64x8@0..9` one drawn uniformly. A shape `s` is a scalar;
- `!` before an input makes it a constant of the file;
- `=i64:0,2` is a constant of these numbers, `=f:0.5` a scalar, `=i64:1,` an array of one number;
- `_` is an input that is absent;
- `axis=1` is an attribute, a Python literal or a name of onnx's types (`to=UINT8`); `outputs=3` and
  `opset=11` say what their names say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper

_OPSET = 21
_KINDS: Mapping[str, Any] = {
    "f": np.float32, "d": np.float64, "f16": np.float16, "b": np.bool_, "bf16": ml_dtypes.bfloat16,
    "u8": np.uint8, "i8": np.int8, "i32": np.int32, "i64": np.int64, "u32": np.uint32,
}  # fmt: skip
_MAP, _SEQUENCE, _ROW = "1x64x56x56", "1x128x768", "1x1000"

# Operators that are not measured by themselves, and why.
NO_CASE: Mapping[str, str] = {
    **dict.fromkeys(
        ("If", "Loop", "Scan"), "what the graphs that it holds take, is measured by their operators"
    ),
    **dict.fromkeys(
        ("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
         "SequenceLength", "SplitToSequence", "ConcatFromSequence", "OptionalGetElement",
         "OptionalHasElement"),
        "sequences become Split, Concat and names of values where the network is bound",
    ),
    **dict.fromkeys(
        ("Constant", "BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range",
         "ConstantOfShape", "EyeLike", "Shape", "Size"),
        "it follows from sizes and constants, and is computed where the network is bound",
    ),
    **dict.fromkeys(
        ("CausalConvWithState", "LinearAttention", "SwiGLU"), "the package onnx has no schema of it"
    ),
    "com.microsoft.DynamicQuantizeLSTM": "a product and a Recurrence, as LSTM",
    "com.microsoft.GatherBlockQuantized": "a Gather of constants",
}  # fmt: skip

_ANY = (_MAP, _SEQUENCE, _ROW)
_PAIRS = (
    f"{_MAP} {_MAP}", f"{_MAP} 1x64x1x1", f"{_MAP} 1x1x56x56", f"{_SEQUENCE} !768", "1x1000 1x1000",
    f"{_SEQUENCE} 1x128x1",
)  # fmt: skip
_INTEGERS = ("i32:1x64x56x56 i32:1x64x56x56", "i64:128x768 i64:128x768", "i64:128x768 =i64:3")
_REDUCED = (
    f"{_MAP} =i64:2,3", f"{_MAP} =i64:1,", f"{_MAP} =i64:3,", f"{_SEQUENCE} =i64:2,",
    f"{_SEQUENCE} =i64:1,", f"{_MAP}", "1000x64 =i64:0,", "16x1000x4 =i64:1,", "256x10 =i64:1,",
)  # fmt: skip
_SHARES = (
    f"{_SEQUENCE} axis=2", "12x128x128 axis=2", "1x1000 axis=1", "1x21x128x128 axis=1",
    "1x8400x4x16 axis=3", "1x16x4x8400 axis=1",
)  # fmt: skip
_SMALL = "@-0.06..0.06"  # weights with which a recurrent layer does not magnify roundings
_RECURRENT = (
    f"128x1x128 !1x{{0}}x128{_SMALL} !1x{{0}}x256{_SMALL} !1x{{1}}{_SMALL} "
    "hidden_size=256 outputs=1"
)
_QUANTISED = "=f:0.05 =u8:128"

ROWS: Mapping[str, tuple[str, ...]] = {
    "Abs Neg Floor Ceil Round Sign Relu LeakyRelu Elu Selu Celu Sigmoid HardSigmoid HardSwish Tanh "
    "Softplus Softsign Erf Exp Sin Cos Tan Atan Sinh Cosh Asinh Gelu Mish ThresholdedRelu Shrink "
    "IsNaN IsInf Identity": _ANY,
    "Swish": (f"{_MAP} opset=24", f"{_SEQUENCE} opset=24"),
    "Gelu": (f"{_SEQUENCE} approximate='tanh'",),
    "Sqrt Log Reciprocal": tuple(f"{shape}@0.1..3" for shape in _ANY),
    "Acos Asin Atanh": tuple(f"{shape}@-0.9..0.9" for shape in _ANY),
    "Acosh": tuple(f"{shape}@1..3" for shape in _ANY),
    "Abs Neg Sign": ("i32:1x64x56x56", "i64:128x768"),
    "Abs Sqrt Exp Neg": ("d:128x768@0.1..1",),
    "Relu Sigmoid Tanh": ("f16:1x64x56x56",),
    "Clip": (f"{_MAP} =f:-1 =f:1", f"{_MAP} =f:0 =f:6", "i64:128x768 =i64:10 =i64:50",
             "1x1000 =f:0"),
    "Dropout": (_MAP, _ROW),
    "Add Sub Mul Div": (*_PAIRS, "i32:1x64x56x56 i32:1x64x56x56@1..99",
                        "i64:128x768 i64:128x768@1..99", "i64:128x768 =i64:3", f"{_MAP} =f:0.5",
                        "d:128x768 d:128x768", "f16:1x64x56x56 f16:1x64x56x56@1..2", "128x1 1x768",
                        "1x128x768 1x1x768"),
    "Min Max": (*_PAIRS, *_INTEGERS, f"{_MAP} {_MAP} {_MAP}"),
    "Sum Mean": (f"{_MAP} {_MAP}", f"{_MAP} {_MAP} {_MAP}", "1x1000 1x1000 1x1000"),
    "Pow": (f"{_MAP}@0.1..2 =f:2", f"{_MAP} =f:3", f"{_MAP}@0.1..2 =f:0.5",
            f"{_SEQUENCE}@0.1..2 {_SEQUENCE}", f"{_SEQUENCE}@0.1..2 =f:1.7", "i64:128x768 =i64:2"),
    "Mod": (*_INTEGERS[2:], "i32:128x768@1..99 i32:128x768@1..99", f"{_SEQUENCE} {_SEQUENCE}@1..2 "
            "fmod=1", "i64:128x768 i64:128x768@1..99"),
    "PRelu": (f"{_MAP} !64x1x1", f"{_SEQUENCE} !768"),
    "Equal Less LessOrEqual Greater GreaterOrEqual": (
        *_PAIRS[:3], *_INTEGERS, "1x1000 1x1000", f"{_MAP} =f:0.5"),
    "And Or Xor": ("b:1x64x56x56 b:1x64x56x56", "b:128x128 b:1x128", "b:1000 b:1000"),
    "Not": ("b:1x64x56x56", "b:1000"),
    "BitwiseAnd BitwiseOr BitwiseXor": ("u8:1x64x56x56 u8:1x64x56x56", "i32:128x768 i32:128x768",
                                        "i64:128x768 =i64:7"),
    "BitwiseNot": ("u8:1x64x56x56", "i64:128x768"),
    "BitShift": ("u8:1x64x56x56 =u8:2 direction='RIGHT'",
                 "u32:128x768 u32:128x768@0..31 direction='LEFT'"),
    "Where": (f"b:1x64x56x56 {_MAP} {_MAP}", "b:1x1x128x128 1x12x128x128 =f:-1e9",
              "b:128x768 i64:128x768 i64:128x768", "b:1x128x1 1x128x768 =f:0", "b:1000 1000 1000"),
    "Cast": tuple(f"512x512@0..100 to={to}" for to in
                  ("UINT8", "INT8", "INT32", "INT64", "UINT32", "BOOL", "FLOAT16", "BFLOAT16",
                   "DOUBLE", "INT16", "UINT16", "UINT64"))
            + tuple(f"{kind}:512x512 to=FLOAT" for kind in
                    ("u8", "i8", "i32", "i64", "b", "f16", "d", "u32"))
            + ("i64:128x768 to=INT32", "i32:128x768 to=INT64", "u8:512x512 to=INT32",
               "i32:512x512 to=UINT8", "b:512x512 to=INT64", "i64:512x512 to=BOOL",
               "d:512x512@0..100 to=INT32", "d:512x512@0..100 to=INT64",
               "d:512x512@0..100 to=UINT8", "f16:512x512@0..100 to=UINT8",
               "f16:512x512@0..100 to=INT32",
               "i64:1x128 to=FLOAT",
               "u8:512x512 to=FLOAT16", "1x1000@0..100 to=INT64", "1x1000@0..100 to=UINT8"),
    "CastLike": ("512x512@0..100 u8:1", "u8:512x512 f:1"),
    "BitCast": ("512x512 to=INT32 opset=26",),
    "ReduceMean ReduceSum ReduceMax ReduceMin ReduceSumSquare ReduceL1 ReduceL2": _REDUCED,
    "ReduceProd ReduceLogSumExp ReduceLogSum": tuple(
        " ".join([part if index else f"{part}@0.9..1.1" for index, part in enumerate(c.split())])
        for c in _REDUCED[1:6]),
    "ReduceSum ReduceMax ReduceMin": ("i32:1x64x56x56 =i64:1,", "i64:128x768 =i64:1,"),
    "ArgMax ArgMin": ("1x1000 axis=1", f"{_SEQUENCE} axis=2", "1x21x128x128 axis=1",
                      f"{_MAP} axis=2", "1000x64 axis=0", "i32:128x768 axis=1"),
    "CumSum": ("1x21x512x512 =i64:1", "1x8x256x256 =i64:2", "1x80x8400 =i64:1",
               "16x1000x64 =i64:1", "1000x64 =i64:0", "1x3x1080x1920 =i64:2", "128x1000 =i64:1",
               "8x32x8000 =i64:2", "1x300x4 =i64:1", "i64:8x128 =i64:1", "i64:128x768 =i64:0",
               "i32:64x56x56 =i64:0", "d:64x56x56 =i64:1", "128x1000 =i64:1 exclusive=1",
               "64x56x56 =i64:1 reverse=1", "64x3136 =i64:0 exclusive=1 reverse=1",
               "4096x16 =i64:0", "1x131072 =i64:1"),
    "CumProd": ("64x56x56@0.9..1.1 =i64:1 opset=26",),
    "Softmax LogSoftmax": (*_SHARES, "d:128x768 axis=1"),
    "Hardmax": _SHARES[:3],
    "TopK": ("1x1000 =i64:5, outputs=2", "128x768 =i64:10, outputs=2", "1x8400 =i64:300, outputs=2",
             "1000x64 =i64:5, axis=0 outputs=2", "1x100000 =i64:100, outputs=2"),
    "LayerNormalization": (f"{_SEQUENCE} !768 !768", "1x196x1024 !1024 !1024", "128x64 !64 !64",
                           "1x56x56x96 !96 !96"),
    "RMSNormalization": (f"{_SEQUENCE} !768 opset=23", "1x2048 !2048 opset=23"),
    "InstanceNormalization": (f"{_MAP} !64 !64", "1x128x1000 !128 !128"),
    "GroupNormalization": (f"{_MAP} !64 !64 num_groups=32", "1x320x32x32 !320 !320 num_groups=32"),
    "BatchNormalization": (f"{_MAP} !64 !64 !64 !64@0.5..2", "128x768 !768 !768 !768 !768@0.5..2"),
    "MeanVarianceNormalization": (_MAP,),
    "LpNormalization": ("128x768 axis=1", "1x64x56x56 axis=1", "128x768 axis=1 p=1"),
    "LRN": ("1x64x56x56 size=5", "1x96x27x27 size=5"),
    "Concat": (f"{_MAP} {_MAP} axis=1", "1x32x56x56 1x32x56x56 1x32x56x56 axis=3", "128x64 128x64 "
               "axis=1", "1x1000 1x1 axis=1", "1x3x8400 1x80x8400 axis=1", "u8:1x64x56x56 "
               "u8:1x64x56x56 axis=1", "i64:1x128 i64:1x1 axis=1", "8400x4 8400x80 axis=1"),
    "Split": (f"{_MAP} outputs=2 num_outputs=2 axis=1", "128x2304 outputs=3 num_outputs=3 axis=1",
              "1x8400x4 outputs=4 num_outputs=4 axis=2", "8400x84 =i64:4,80 outputs=2 axis=1"),
    "Slice": (f"{_MAP} =i64:4,4 =i64:52,52 =i64:2,3",
              f"{_MAP} =i64:0, =i64:56, =i64:3, =i64:2,",
              "1x3x224x224 =i64:0,0 =i64:224,224 =i64:2,3 =i64:2,2", f"{_SEQUENCE} =i64:0, =i64:1, "
              "=i64:1,", "128x768 =i64:-1, =i64:-1000, =i64:1, =i64:-1,",
              "8400x84 =i64:4, =i64:84, =i64:1,", "u8:224x224x3 =i64:0, =i64:1, =i64:2,",
              "1x8400x4 =i64:0, =i64:2, =i64:2,"),
    "Pad": (f"{_MAP} =i64:0,0,1,1,0,0,1,1", f"{_MAP} =i64:0,0,1,1,0,0,1,1 mode='reflect'",
            f"{_MAP} =i64:0,0,1,1,0,0,1,1 mode='edge'", "1x3x224x224 =i64:0,0,3,3,0,0,3,3",
            "128x768 =i64:0,0,0,256", "1x16000 =i64:0,200,0,200 mode='reflect'",
            "1x3x224x224 =i64:0,0,16,16,0,0,16,16 mode='wrap'",
            "u8:1x3x224x224 =i64:0,0,3,3,0,0,3,3"),
    "Transpose": (f"{_MAP} perm=[0,2,3,1]", "1x56x56x64 perm=[0,3,1,2]", "1x128x12x64 "
                  "perm=[0,2,1,3]", "1x12x128x64 perm=[0,2,3,1]", "768x768 perm=[1,0]", "128x3 "
                  "perm=[1,0]", "1x3x224x224 perm=[0,2,3,1]", "u8:1x224x224x3 perm=[0,3,1,2]",
                  "f16:768x768 perm=[1,0]", "i64:768x768 perm=[1,0]", "1x8x8x16x16x4 "
                  "perm=[0,1,3,2,4,5]", "1x84x8400 perm=[0,2,1]", "4x5x6x7x8 perm=[4,3,2,1,0]"),
    "Tile": ("1x64x56x56 =i64:1,1,2,2", "1x64x56x56 =i64:1,1,1,2", "1x64x56x56 =i64:1,1,2,1",
             "1x1x64 =i64:1,197,1", "1x300x4 =i64:1,1,80", "1x16x128x128 =i64:1,1,3,3",
             "1x1x768 =i64:1,128,1", "u8:1x3x64x64 =i64:1,1,4,4", "i64:1x128 =i64:8,1",
             "1x64x1x1 =i64:1,1,56,56", "1x3x7x5 =i64:2,2,3,5", "1x1x1x1000 =i64:1,1,3,1",
             "4x4 =i64:64,64", "1x256x7x7 =i64:1,1,2,2"),
    "Expand": ("1x64x1x1 =i64:1,64,56,56", "1x1x128 =i64:12,128,128",
               "1x8x1x128x64 =i64:1,8,4,128,64", "128x1 =i64:128,768",
               "b:1x1x1x128 =i64:1,12,128,128"),
    "Reshape": (f"{_MAP} =i64:64,3136", "1x1000 =i64:1000,"),
    "Flatten": (_MAP,),
    "Squeeze": ("1x64x1x1 =i64:2,3",),
    "Unsqueeze": ("1x1000 =i64:2,",),
    "DepthToSpace": ("1x48x128x128 blocksize=4", "1x12x128x128 blocksize=2 mode='CRD'",
                     "1x64x56x56 blocksize=2", "1x27x64x64 blocksize=3 mode='CRD'"),
    "SpaceToDepth": ("1x3x224x224 blocksize=2", "1x64x56x56 blocksize=2"),
    "ReverseSequence": ("128x8x64 =i64:128,100,50,1,128,64,32,16 batch_axis=1 time_axis=0",),
    "Trilu": ("12x128x128 upper=0", "1024x1024", "128x128 =i64:1"),
    "CenterCropPad": ("1x3x224x224 =i64:200,240 axes=[2,3]", "224x224x3 =i64:192,192 axes=[0,1]"),
    "Gather": ("!30522x768 i64:1x128@0..30000", "1x128x768 =i64:0 axis=1", "8400x4 i64:300@0..8400",
               "1x64x56x56 =i64:3,1,2 axis=1", "1x3x224x224 i64:112@0..224 axis=3",
               "u8:30522x64 i64:1000@0..30000", "8400x84 i32:300@0..8400 axis=0"),
    "GatherElements": ("1x8400x4 i64:1x300x4@0..8400 axis=1", "128x768 i64:128x768@0..768 axis=1",
                       "128x768 i64:128x768@0..128 axis=0"),
    "GatherND": ("8400x4 i64:300x1@0..8400", "128x768 i64:1000x2@0..128",
                 "1x300x91 i64:1x300x1@0..300 batch_dims=1"),
    "ScatterElements": ("128x768 i64:128x64@0..768 128x64 axis=1", "8400x4 i64:300x4@0..8400 300x4",
                        "128x768 i64:128x768@0..768 128x768 axis=1 reduction='add'"),
    "Scatter": ("128x768 i64:128x64@0..768 128x64 axis=1 opset=10",),
    "ScatterND": ("8400x4 i64:300x1@0..8400 300x4", "128x768 i64:1000x2@0..128 1000",
                  "8400x4 i64:300x1@0..8400 300x4 reduction='add'"),
    "TensorScatter": ("1x8x512x64 1x8x1x64 =i64:5, opset=24",),
    "OneHot": ("i64:1x128@0..1000 =i64:1000 =f:0,1", "i64:8x128@0..64 =i64:64 =f:0,1 axis=1"),
    "NonZero": ("b:128x768", "1x1000"),
    "Compress": ("8400x4 b:8400 axis=0", "128x768 b:768 axis=1"),
    "Unique": ("i64:1000@0..99 outputs=4",),
    "NonMaxSuppression": ("1x1000x4@0..1 1x1x1000@0..1 =i64:100 =f:0.5 =f:0.3",
                          "1x8400x4@0..1 1x2x8400@0..1 =i64:100 =f:0.5 =f:0.9"),
    "Resize": ("1x64x56x56 _ =f:1,1,2,2", "1x64x56x56 _ =f:1,1,2,2 mode='linear'", "1x3x224x224 _ "
               "=f:1,1,0.5,0.5 mode='linear'", "1x3x224x224 _ =f:1,1,2,2 mode='cubic'",
               "1x64x28x28 _ _ =i64:1,64,45,45 mode='linear' "
               "coordinate_transformation_mode='align_corners'", "1x3x480x640 _ _ "
               "=i64:1,3,224,224 mode='linear' antialias=1", "u8:1x3x224x224 _ =f:1,1,2,2"),
    "Upsample": ("1x64x56x56 =f:1,1,2,2 opset=9", "1x64x56x56 =f:1,1,2,2 mode='linear' opset=9"),
    "GridSample": ("1x64x56x56 1x56x56x2@-1..1", "1x3x224x224 1x224x224x2@-1..1 mode='nearest'",
                   "1x16x56x56 1x56x56x2@-1..1 mode='cubic'"),
    "RoiAlign": ("1x64x56x56 100x4@0..56 i64:100@0..1 output_height=7 output_width=7 "
                 "sampling_ratio=2",),
    "AffineGrid": ("1x2x3 =i64:1,3,224,224",),
    "DeformConv": ("1x32x28x28 !32x32x3x3 1x18x28x28@-1..1 pads=[1,1,1,1]",),
    "Col2Im": ("1x576x3136 =i64:56,56 =i64:3,3 pads=[1,1,1,1]",),
    "Conv": ("1x64x56x56 !64x64x3x3 !64 pads=[1,1,1,1]", "1x64x56x56 !128x64x1x1 !128",
             "1x3x224x224 !64x3x7x7 pads=[3,3,3,3] strides=[2,2]",
             "1x64x56x56 !64x1x3x3 group=64 pads=[1,1,1,1]", "1x64x1000 !64x64x3"),
    "ConvTranspose": ("1x64x28x28 !64x32x2x2 strides=[2,2]", "1x32x28x28 !32x32x4x4 strides=[2,2] "
                      "pads=[1,1,1,1]"),
    "MaxPool": ("1x64x112x112 kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]", "1x64x56x56 "
                "kernel_shape=[2,2] strides=[2,2]", "1x256x20x20 kernel_shape=[5,5] pads=[2,2,2,2]",
                "1x64x1000 kernel_shape=[3] strides=[2]", "1x64x56x56 kernel_shape=[2,2] "
                "strides=[2,2] outputs=2"),
    "AveragePool": ("1x64x56x56 kernel_shape=[2,2] strides=[2,2]", "1x64x56x56 kernel_shape=[3,3] "
                    "pads=[1,1,1,1]", "1x64x56x56 kernel_shape=[7,7]"),
    "LpPool": ("1x64x56x56 kernel_shape=[2,2] strides=[2,2]",),
    "GlobalAveragePool GlobalMaxPool GlobalLpPool": ("1x64x56x56", "1x1280x7x7", "1x512x1000"),
    "MaxUnpool": ("1x64x28x28 i64:1x64x28x28@0..3136 kernel_shape=[2,2] strides=[2,2]",),
    "MatMul": ("128x768 !768x768", "1x768 !768x3072", "12x128x64 12x64x128", "128x768 768x768",
               "1x12x1x64 1x12x64x512", "d:128x256 d:256x256"),
    "Gemm": ("1x2048 !1000x2048 !1000 transB=1", "128x768 !3072x768 !3072 transB=1",
             "256x128 256x128 transA=1 alpha=0.5"),
    "Einsum": ("12x128x64 12x128x64 equation='hqd,hkd->hqk'", "1x128x12x64 768x64 "
               "equation='bthd,od->bto'"),
    "Attention": ("1x12x128x64 1x12x128x64 1x12x128x64 opset=23", "1x12x1x64 1x12x512x64 "
                  "1x12x512x64 opset=23"),
    "RotaryEmbedding": ("1x12x128x64 128x32 128x32 i64:1x128@0..128 opset=23",),
    "LSTM": (_RECURRENT.format(1024, 2048),
             f"32x8x64 !1x512x64{_SMALL} !1x512x128{_SMALL} hidden_size=128"),
    "GRU": (_RECURRENT.format(768, 1536),),
    "RNN": (_RECURRENT.format(256, 512),),
    "DFT": ("1x512x1 =i64:512 =i64:1 onesided=1", "64x400x1 =i64:400 =i64:1 onesided=1"),
    "STFT": ("1x16000 =i64:160 !400 =i64:400 opset=17",),
    "Det": ("100x4x4",),
    "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss": ("64x1000 i64:64@0..1000",),
    "QuantizeLinear": (f"{_MAP} {_QUANTISED}", f"{_SEQUENCE} {_QUANTISED}", f"{_ROW} {_QUANTISED}",
                       f"{_MAP} !64@0.01..0.1 !u8:64 axis=1", "128x768 =f:0.05 =i8:0"),
    "DequantizeLinear": (f"u8:{_MAP} {_QUANTISED}", f"u8:{_ROW} {_QUANTISED}",
                         f"u8:{_MAP} !64@0.01..0.1 !u8:64 axis=1", "i8:128x768 =f:0.05 =i8:0",
                         "i32:128x768 =f:0.05"),
    "DynamicQuantizeLinear": ("128x768 outputs=3", "1x768 outputs=3", f"{_MAP} outputs=3",
                              "1x3x224x224 outputs=3", "1x128x3072 outputs=3"),
    "MatMulInteger": ("u8:128x768 !i8:768x768 =u8:128 =i8:0", "u8:1x768 !i8:768x768 =u8:128"),
    "ConvInteger": ("u8:1x64x28x28 !i8:64x64x3x3 =u8:128 pads=[1,1,1,1]",),
    "QLinearConv": ("u8:1x64x56x56 =f:0.05 =u8:128 !i8:64x64x3x3 =f:0.02 =i8:0 =f:1 =u8:128 "
                    "pads=[1,1,1,1]",),
    "QLinearMatMul": ("u8:128x768 =f:0.05 =u8:128 !i8:768x768 =f:0.02 =i8:0 =f:1 =u8:128",),
    "com.microsoft.QLinearAdd com.microsoft.QLinearMul": (
        f"u8:{_MAP} {_QUANTISED} u8:{_MAP} {_QUANTISED} =f:0.1 =u8:128",
        f"u8:{_ROW} {_QUANTISED} u8:{_ROW} {_QUANTISED} =f:0.1 =u8:128"),
    "com.microsoft.QLinearSigmoid com.microsoft.QLinearLeakyRelu": (
        f"u8:{_MAP} {_QUANTISED} =f:0.01 =u8:0", f"u8:{_ROW} {_QUANTISED} =f:0.01 =u8:0"),
    "com.microsoft.QLinearSoftmax": (f"u8:128x768 {_QUANTISED} =f:0.004 =u8:0 opset=13 axis=1",),
    "com.microsoft.QLinearConcat": (
        f"=f:0.1 =u8:128 u8:{_MAP} {_QUANTISED} u8:{_MAP} {_QUANTISED} axis=1",),
    "com.microsoft.QLinearAveragePool": (
        f"u8:{_MAP} {_QUANTISED} =f:0.05 =u8:128 kernel_shape=[2,2] strides=[2,2]",),
    "com.microsoft.QLinearGlobalAveragePool": (f"u8:{_MAP} {_QUANTISED} =f:0.05 =u8:128",),
    "com.microsoft.QLinearReduceMean": (
        f"u8:{_MAP} {_QUANTISED} =f:0.05 =u8:128 axes=[2,3] keepdims=1",),
    "com.microsoft.QLinearWhere": (
        f"b:{_MAP} u8:{_MAP} {_QUANTISED} u8:{_MAP} {_QUANTISED} =f:0.1 =u8:128",),
    "com.microsoft.QLinearConv": (
        "u8:1x56x56x64 =f:0.05 =u8:128 !i8:64x64x3x3 =f:0.02 =i8:0 =f:1 =u8:128 _ "
        "pads=[1,1,1,1] channels_last=1",),
    "com.microsoft.NhwcMaxPool": ("u8:1x56x56x64 kernel_shape=[2,2] strides=[2,2]",),
    "com.microsoft.QGemm": (
        "u8:128x768 =f:0.05 =u8:128 !i8:768x768 =f:0.02 =i8:0 _ =f:1 =u8:128",),
    "com.microsoft.MatMulIntegerToFloat": (
        "u8:128x768 !i8:768x768 =f:0.05 =f:0.02 =u8:128 =i8:0",),
    "com.microsoft.DynamicQuantizeMatMul": ("128x768 !i8:768x768 =f:0.02 =i8:0",),
    "com.microsoft.MatMulNBits": (
        "1x1024 !u8:1024x32x16 !1024x32@0.01..0.02 K=1024 N=1024 bits=4 block_size=32",),
    "com.microsoft.QuantizeLinear": (f"{_MAP} {_QUANTISED}",),
    "com.microsoft.DequantizeLinear": (f"u8:{_MAP} {_QUANTISED}",),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes:
        operator: with the prefix of its domain.
        words: as above.
    """

    operator: str
    words: str

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.operator} {self.words}"


def cases() -> Iterator[Case]:
    """All cases, operators in the order of the table."""
    for operators, lines in ROWS.items():
        for operator in operators.split():
            for line in lines:
                yield Case(operator, line)


def built(case: Case) -> tuple[bytes, dict[str, np.ndarray]]:
    """The ONNX file of a case, and what a run is given."""
    draw = np.random.default_rng(crc32(case.name.encode()))
    given: dict[str, np.ndarray] = {}
    constants: dict[str, np.ndarray] = {}
    names: list[str] = []
    attributes: dict[str, Any] = {}
    said = {"opset": _OPSET, "outputs": 1}
    domain, _, operator = case.operator.rpartition(".")
    for number, word in enumerate(case.words.split()):
        key, is_attribute, value = word.partition("=")
        if key and is_attribute:
            own = key in said and not domain  # an operator of Microsoft's may have an `opset`
            (said if own else attributes)[key] = _literal(value)
            continue
        names.append("" if word == "_" else f"x{number}")
        if value:
            constants[names[-1]] = _numbers(value)
        elif word.startswith("!"):
            constants[names[-1]] = _drawn(word[1:], draw)
        elif names[-1]:
            given[names[-1]] = _drawn(word, draw)
    results = [f"y{number}" for number in range(said["outputs"])]
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "case",
        [_info(name, array) for name, array in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", said["opset"]), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    data: bytes = model.SerializeToString()
    return data, given


def _info(name: str, array: np.ndarray) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def _literal(text: str) -> Any:
    if text.isidentifier():
        return getattr(TensorProto, text)
    return ast.literal_eval(text)


def _numbers(text: str) -> np.ndarray:
    kind, _, numbers = text.partition(":")
    return np.array(ast.literal_eval(numbers), _KINDS[kind])


def _drawn(word: str, draw: np.random.Generator) -> np.ndarray:
    kind, _, rest = word.rpartition(":")
    text, _, interval = rest.partition("@")
    shape = () if text == "s" else tuple(map(int, text.split("x")))
    dtype = np.dtype(_KINDS[kind or "f"])
    if kind == "b":
        return draw.random(shape) < 0.5
    low, high = map(float, interval.split("..")) if interval else (0, 100)
    if interval or dtype.kind in "iub":
        drawn = draw.random(prod(shape)) * (high - low) + low
        return drawn.reshape(shape).astype(dtype)
    return draw.standard_normal(shape).astype(dtype)
