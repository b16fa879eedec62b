"""`python -m leanconv` is the command line."""

import sys

from leanconv.cli.entry import main

sys.exit(main())
