"""`python -m underhood`: the same as `underhood`."""

import sys

from underhood.cli import main

if __name__ == "__main__":
    sys.exit(main())
