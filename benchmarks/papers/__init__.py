"""What the papers and documents write, as readable NumPy: algorithms, sizes, work."""
