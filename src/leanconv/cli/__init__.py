"""The command line: one module for each sub-command, and the only place that prints.

`main` says what the exit codes mean. rich and Pillow are imported where they are used, so that
`leanconv --help` stays quick.
"""

EXIT_OK = 0
EXIT_USER_ERROR = 1  # a model, image, problem or setting cannot be used; the message says why
EXIT_USAGE = 2  # the command line itself is wrong
EXIT_NOT_MET = 3  # done, but answers differ, or memory or a benchmark's goal was not kept
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
