"""The MobileNetV2 report's steps as kernels with switches, and what runs them."""
