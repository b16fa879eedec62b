"""Pages of Markdown that are written from results in docs/results."""
