"""From a float32 network and samples to a file of 8-bit integers: post-training quantisation.

    read ─▶ raise to opset 13 ─▶ fold ─▶ scheme ─▶ calibrate ─▶ codes ─▶ file ─▶ verify

- `onnx_graph` is a file that can be changed and written again; `onnx_reading` makes it of bytes,
  `opsets` and `folding` change it.
- `layers` knows what has weights; `scheme` says which values become codes with them.
- `running` runs networks on `samples`; a `histogram` for each value is all that is kept; `ranges`
  and `codes` make scales of them, `weights` those of weights.
- `emit` writes the codes into the network, as QuantizeLinear and DequantizeLinear or, so that any
  plan in float32 shows what they do, as rounded floats.
- `plans` says what plans predict of a file, `costs` what each layer gains in each precision by
  these, `front` the choices of layers that are worth trying, `choose` measures these.
- `saturating` says what engines answer whose sums are of 16 bits.
- `scores` says how well a network answers; `quantize` is the function that a user calls.
"""
