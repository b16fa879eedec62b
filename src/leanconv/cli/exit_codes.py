"""What the command line's exit codes mean."""

EXIT_OK = 0
EXIT_USER_ERROR = 1  # a model, image, problem or setting cannot be used; the message says why
EXIT_USAGE = 2  # the command line itself is wrong
EXIT_NOT_MET = 3  # done, but answers differ, or memory or a benchmark's goal was not kept
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
