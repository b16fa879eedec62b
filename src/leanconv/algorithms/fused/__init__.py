"""Mobile blocks in one pass over rows: nothing between their convolutions is stored."""
