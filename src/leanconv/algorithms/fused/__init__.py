"""A mobile network's block as one stage: a convolution, a depthwise one and a 1x1 one.

    expanded[c, i, j] = act_1(bias_1[c] + sum over k, taps of x[k, …] · w_1[c, k, …])
    filtered[c, o, p] = act_2(bias_2[c] + sum over kh, kw of expanded[c, …] · w_2[c, kh, kw])
    y[m, o, p] = act_3(bias_3[m] + residual[m, o, p] + sum over c of filtered[c, o, p] · w_3[m, c])

    x rows     ----------------------
    expanded       [ring of rows, all channels]  or  [one panel of channels]      in scratch
    filtered             [rows of one step, all channels]                         in scratch
    y rows     ----------------------

    for chunk (part of the channels c, image, strip of output rows):
        for step of output rows:
            for panel of c: new expanded rows (direct kernel); filtered rows (depthwise kernel)
            rows of y from all filtered rows (direct kernel)

`expanded`, the largest tensor of the block, is never stored in full. Three forms: **rows** keeps a
ring of expanded rows; **panel** holds one panel of channels and computes rows that two steps need
twice; **split** gives a chunk a part of the channels c, whose sums `SumOfParts` adds
up. `stream` runs several blocks one after the other in one pass over rows, with rings between them.

Stages of codes make codes in their epilogues, so that all rows are bytes. Codes of an image may be
made of its floats row by row (`block`), rows of `expanded` may have a border of any code, and the
codes of a row may be looked up in a table before the next stage reads them.

- Bytes: expanded and filtered rows of a step in each thread's scratch; weights as the direct and
  depthwise kernels pack them.
- Error: that of the three convolutions, one after the other.
- When: `operators.chains` compares its cost with three stages.
- Source: no paper; fusing an inverted residual (Sandler and others, MobileNetV2, arXiv 1801.04381)
  by rows, as line buffers of image pipelines do.

Reading order: `block` (its kernels), `rows` (one step), `kernel` (one block), `stream` (several),
`forms` (strips, steps, parts), `cost`.
"""
