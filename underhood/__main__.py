"""`underhood` and `python -m underhood`: Ctrl-C is heard from the first line on, then the commands are imported."""

import sys

from underhood.core.interrupts import exit_on_interrupt


def main() -> int:
    """Run the command that was typed.

    **Returns:**

    The exit code.
    """
    exit_on_interrupt()
    from underhood import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
