"""The parts of ONNX's file format that are read: field numbers of `onnx.proto`."""

from __future__ import annotations

from leanconv import types
from leanconv.graph.wire import Kind, Schema

MODEL: Schema = {
    1: ("ir_version", Kind.INT),
    2: ("producer_name", Kind.TEXT),
    4: ("domain", Kind.TEXT),
    5: ("model_version", Kind.INT),
    6: ("doc_string", Kind.TEXT),
    7: ("graph", Kind.BYTES),
    8: ("opset_import", Kind.MANY),
    14: ("metadata_props", Kind.MANY),
    25: ("functions", Kind.MANY),
}
FUNCTION: Schema = {
    1: ("name", Kind.TEXT),
    4: ("input", Kind.TEXTS),
    5: ("output", Kind.TEXTS),
    6: ("attribute", Kind.TEXTS),
    7: ("node", Kind.MANY),
    9: ("opset_import", Kind.MANY),
    10: ("domain", Kind.TEXT),
    11: ("attribute_proto", Kind.MANY),
    13: ("overload", Kind.TEXT),
}
OPSET: Schema = {1: ("domain", Kind.TEXT), 2: ("version", Kind.INT)}
GRAPH: Schema = {
    1: ("node", Kind.MANY),
    2: ("name", Kind.TEXT),
    5: ("initializer", Kind.MANY),
    10: ("doc_string", Kind.TEXT),
    11: ("input", Kind.MANY),
    12: ("output", Kind.MANY),
    15: ("sparse_initializer", Kind.MANY),
}
NODE: Schema = {
    1: ("input", Kind.TEXTS),
    2: ("output", Kind.TEXTS),
    3: ("name", Kind.TEXT),
    4: ("op_type", Kind.TEXT),
    5: ("attribute", Kind.MANY),
    7: ("domain", Kind.TEXT),
    8: ("overload", Kind.TEXT),
}
ATTRIBUTE: Schema = {
    1: ("name", Kind.TEXT),
    2: ("f", Kind.FLOAT),
    3: ("i", Kind.INT),
    4: ("s", Kind.BYTES),
    5: ("t", Kind.BYTES),
    6: ("g", Kind.BYTES),
    7: ("floats", Kind.FLOATS),
    8: ("ints", Kind.INTS),
    9: ("strings", Kind.MANY),
    20: ("type", Kind.INT),
    21: ("ref_attr_name", Kind.TEXT),
    22: ("sparse_tensor", Kind.BYTES),
}
TENSOR: Schema = {
    1: ("dims", Kind.INTS),
    2: ("data_type", Kind.INT),
    3: ("segment", Kind.BYTES),
    4: ("float_data", Kind.FLOATS),
    5: ("int32_data", Kind.INTS),
    7: ("int64_data", Kind.INTS),
    8: ("name", Kind.TEXT),
    9: ("raw_data", Kind.BYTES),
    10: ("double_data", Kind.FLOATS),
    11: ("uint64_data", Kind.INTS),
    13: ("external_data", Kind.MANY),
    14: ("data_location", Kind.INT),
}
SPARSE: Schema = {
    1: ("values", Kind.BYTES),
    2: ("indices", Kind.BYTES),
    3: ("dims", Kind.INTS),
}
ENTRY: Schema = {1: ("key", Kind.TEXT), 2: ("value", Kind.TEXT)}
VALUE: Schema = {1: ("name", Kind.TEXT), 2: ("type", Kind.BYTES)}
TYPE: Schema = {
    1: ("tensor_type", Kind.BYTES),
    4: ("sequence_type", Kind.BYTES),
    5: ("map_type", Kind.BYTES),
    8: ("sparse_tensor_type", Kind.BYTES),
    9: ("optional_type", Kind.BYTES),
}
TENSOR_TYPE: Schema = {1: ("elem_type", Kind.INT), 2: ("shape", Kind.BYTES)}
SHAPE: Schema = {1: ("dim", Kind.MANY)}
DIMENSION: Schema = {1: ("dim_value", Kind.INT), 2: ("dim_param", Kind.TEXT)}

# AttributeProto.type -> what the attribute is called here
ATTRIBUTE_KINDS = {
    1: "float",
    2: "int",
    3: "string",
    4: "tensor",
    5: "graph",
    6: "floats",
    7: "ints",
    8: "strings",
    9: "tensors",
    10: "graphs",
    11: "sparse tensor",
    12: "sparse tensors",
    13: "type",
    14: "types",
}
# TensorProto.data_type -> dtype, of what is read
DTYPES = {dtype.onnx: dtype for dtype in types.DTYPES if dtype != types.BFLOAT16}
# The number by the name that TensorProto has for it, as casts before opset 6 write it
DTYPE_NUMBERS = {
    **{name.upper(): number for number, name in DTYPES.items()},
    "FLOAT": 1,
    "DOUBLE": 11,
}
OTHER_DTYPES = {
    8: "string",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float8e4m3fn",
    18: "float8e4m3fnuz",
    19: "float8e5m2",
    20: "float8e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4e2m1",
    24: "float8e8m0",
    25: "uint2",
    26: "int2",
    27: "float6e2m3",
    28: "float6e3m2",
}
