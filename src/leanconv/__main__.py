"""`python -m leanconv` is the command line."""

import sys

from leanconv.cli.main import main

sys.exit(main())
