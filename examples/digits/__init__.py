"""A narrow MobileNetV2 that reads handwritten digits, with the script that trained it."""
