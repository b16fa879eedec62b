"""From a float32 network and samples to a file of 8-bit integers: post-training quantisation.

    read ─▶ raise to opset 13 ─▶ fold ─▶ scheme ─▶ calibrate ─▶ codes ─▶ file ─▶ verify

- `graph/onnx_graph` is a file that can be changed and written again; `float_network` reads it,
  raises its opset and folds it.
- `layers` knows what has weights, and which values become codes with them.
- `variants` runs the network on `samples`; a histogram for each value is all that is kept; `codes`
  makes scales of them, `rounding` those of weights.
- `emit` writes the codes into the network, as QuantizeLinear and DequantizeLinear or, so that any
  plan in float32 shows what they do, as rounded floats; also layers in 16 bits.
- `costs` says what each layer gains in each precision by plans of files; `choose` finds the choices
  of layers that are worth trying, and measures these.
- `saturating` says what engines answer whose sums are of 16 bits.
- `scores` says how well a network answers; `quantize` is the function that a user calls.
"""
