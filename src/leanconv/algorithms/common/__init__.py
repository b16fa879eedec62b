"""Parts that kernels of several methods share.

`conv`: the record of a convolution that problems, shapes and kernels hold, the base of kernels that
take any number of groups, taps that touch the input. `linear_code`: straight-line programs of the
transforms as vector code. `weight_packing`: weights in panels, as they are or transformed.
"""
