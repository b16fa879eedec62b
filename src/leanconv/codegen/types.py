"""LLVM's names of our element types."""

from leanconv.dtypes import ITEMSIZE

ELEMENT = {"float32": "float", "float64": "double"}
ELEMENT_BYTES = {name: ITEMSIZE[dtype] for dtype, name in ELEMENT.items()}
