"""What kernels of several methods share.

`grouped_conv`: facts of a convolution of any groups, taps that touch the input. `kernel_fields`:
fields of a kernel that problem and target decide. `linear_code`: straight-line programs of the
transforms as vector code. `weight_packing`: weights in panels, as they are or transformed.
"""
