"""What kernels of several methods share.

`grouped_conv`: facts of a convolution of any groups. `kernel_fields`: fields of a kernel that
problem and target decide. `linear_code`: straight-line programs of the transforms as vector
code. `channels`: bias and slopes. `good_choices`: few choices
of which one is good for each size.
`taps`: which taps touch the input at an output position. `partial_results`: the sum of tensors that
each hold a part of the channels' sums.
"""
