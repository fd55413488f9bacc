"""`python -m orbitwise` is the `orbitwise` command, and torchrun starts it in several processes."""

import sys

from orbitwise.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
