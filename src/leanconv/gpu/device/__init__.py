"""The device: compiling for it, its memory, launching, and arrays shared with other libraries."""
