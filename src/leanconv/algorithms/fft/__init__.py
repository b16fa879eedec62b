"""Convolution by tiled Fourier transforms: overlap-save, for large kernels."""

from leanconv.algorithms.fft.algorithm import FFT

__all__ = ["FFT"]
