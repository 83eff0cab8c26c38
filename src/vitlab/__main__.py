"""`python -m vitlab`, the same as `vitlab`."""

import sys

from vitlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
