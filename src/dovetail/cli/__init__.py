"""The `dovetail` command, whose packages come with the extra `cli`."""

from __future__ import annotations

import sys

from dovetail._extras import requires_extra
from dovetail.errors import MissingExtraError


def run() -> None:
    """Run the command line. If an extra is missing, print how to install it."""
    try:
        with requires_extra("cli", "the command 'dovetail'"):
            from dovetail.cli.main import main  # noqa: PLC0415 - the extra may be missing
        main()
    except MissingExtraError as error:
        sys.exit(str(error))
