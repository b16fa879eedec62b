"""Names of a file's values and nodes as messages show them."""

NAME = 200  # characters of a name that messages show


def shown(name: str) -> str:
    """A name short enough for a message."""
    return name if len(name) <= NAME else name[:NAME] + "…"
