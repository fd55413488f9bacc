"""`python -m orbitwise.cli` is the `orbitwise` command."""

import sys

from orbitwise.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
