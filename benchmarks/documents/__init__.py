"""The figures and tables of the four documents, re-made: one module for each document."""
