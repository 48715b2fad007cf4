"""`infrarsi`: parse, run one command, turn errors into exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from engine.errors import ExitCode, InfraError
from engine.journal.session import StopRequested
from infrarsi_tui.cli.commands import COMMANDS
from infrarsi_tui.cli.parser import build_parser
from infrarsi_tui.composition import product_version
from infrarsi_tui.streams import emit_json, error_value, narrate, narrate_error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        An ExitCode.
    """
    os.umask(0o077)
    arguments = list(sys.argv[1:] if argv is None else argv)
    wants_json = "--json" in arguments
    try:
        parsed = build_parser(product_version()).parse_args(arguments)
        if parsed.command is None:
            build_parser(product_version()).print_help(sys.stderr)
            return ExitCode.USAGE
        return COMMANDS[parsed.command](parsed)
    except InfraError as error:
        if wants_json:
            emit_json(error_value(error))
        narrate_error(error)
        return error.exit_code
    except (KeyboardInterrupt, StopRequested):
        narrate("stopped; `infrarsi resume STUDY` goes on")
        return ExitCode.INTERRUPTED
    except Exception as error:
        # The last resort: a defect of ours must reach scripts as JSON too, and a person with all its lines.
        if wants_json:
            emit_json(
                {
                    "error": {
                        "kind": "internal",
                        "message": repr(error),
                        "file": None,
                        "key": None,
                        "hint": None,
                    }
                }
            )
        narrate("internal error: please report these lines")
        narrate(traceback.format_exc())
        return ExitCode.INTERNAL


if __name__ == "__main__":
    sys.exit(main())
