"""LLVM's names of our element types."""

ELEMENT = {"float32": "float", "float64": "double"}
ITEMSIZE = {"float32": 4, "float64": 8}
ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
