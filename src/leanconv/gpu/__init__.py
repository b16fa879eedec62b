"""The same convolutions and networks on an NVIDIA GPU: Triton kernels, launched by the driver.

`kernels/` holds the code that runs on the device, `lowering/` says which kernels with which
arguments compute an operation (data, without a device), `device/` compiles and launches them.
Nothing here imports triton before a kernel is compiled, and nothing needs torch.
"""
