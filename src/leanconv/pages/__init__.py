"""Pages of HTML about plans: what the command line writes and the server shows."""
