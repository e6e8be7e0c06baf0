"""`python -m embedctl`: the same command."""

import sys

from embedctl.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
