"""LLVM's names of our element types."""

ELEMENT = {"float32": "float", "float64": "double"}
