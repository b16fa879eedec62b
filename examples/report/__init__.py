"""The text files of the MobileNetV2 report: write, read, run, compare."""
