"""Image files that are larger than memory: TIFF, OME-Zarr and Zarr, NumPy's `.npy`.

from leanconv.images import create_image, open_image

x = open_image("slide.ome.tif")  # shape, dtype, slices, and the layout of its axes
tiled(x, out=create_image("classes.ome.zarr", (4, *x.shape[:2]), "float32", "CYX"))
"""

from __future__ import annotations

from leanconv.images.files import create_image, open_image

__all__ = ["create_image", "open_image"]
