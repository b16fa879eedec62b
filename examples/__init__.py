"""Networks to measure, a trained digit reader, the text files of the MobileNetV2 report."""
