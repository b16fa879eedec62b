"""The command line: one module for each sub-command, and the only place that prints.

`main` says what the exit codes mean. rich and Pillow are imported where they are used, so that
`leanconv --help` stays quick.
"""
