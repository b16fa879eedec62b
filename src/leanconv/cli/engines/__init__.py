"""The engines that `leanconv bench` compares, each in a process of its own.

- `catalogue`: which engines there are, and in which interpreter each is installed
- `worker`, `engine_*`: what runs in the engine's process
- `process`: this side of that process
- `rounds`: engines measured in turn, answers compared, ratios
- `machine`: what this machine is, and whether others are using it
- `onnx_file`: one convolution as an ONNX file
"""
