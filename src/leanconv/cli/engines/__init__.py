"""The engines that `leanconv bench` compares, each in a process of its own.

- `worker`, `engine_*`: what runs in the engine's process
- `tflite`: the files that LiteRT reads, written from ONNX files
- `processes`: which engines there are, in which interpreter each is installed, and this side of its
  process
- `rounds`: engines measured in turn, answers compared, ratios
- `machine`: what this machine is, and whether others are using it
"""
