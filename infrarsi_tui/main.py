"""`infrarsi`: parse, run one command, turn errors into exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from engine.errors import ExitCode, InfraError, InfrastructureError
from infrarsi_tui.cli.commands import load_command
from infrarsi_tui.cli.parser import build_parser
from infrarsi_tui.leaving import LeftStudy
from infrarsi_tui.streams import emit_error, narrate, narrate_error
from infrarsi_tui.threads import limit_threads
from infrarsi_tui.version import product_version


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        An ExitCode.
    """
    os.umask(0o077)
    limit_threads(os.environ)
    arguments = list(sys.argv[1:] if argv is None else argv)
    wants_json = "--json" in arguments
    try:
        return _run(arguments)
    except InfraError as error:
        return _failed(error, wants_json)
    except OSError as error:
        place = None if error.filename is None else str(error.filename)
        hint = "check the path and its permissions"
        return _failed(InfrastructureError(error.strerror or str(error), file=place, hint=hint), wants_json)
    except LeftStudy as left:
        if wants_json:
            emit_error(left.kind, left.message, hint=left.hint)
        narrate(f"{left.message}; {left.hint}" if left.hint not in left.message else left.message)
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        if wants_json:
            emit_error("interrupted", "stopped", hint="run the command again")
        narrate("stopped")
        return ExitCode.INTERRUPTED
    except Exception as error:
        # The last resort: a defect of ours must reach scripts as JSON too, and a person with all its lines.
        if wants_json:
            emit_error("internal", repr(error))
        narrate("internal error: please report these lines")
        narrate(traceback.format_exc())
        return ExitCode.INTERNAL


def _run(arguments: Sequence[str]) -> int:
    parser = build_parser(product_version())
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    return load_command(parsed.command)(parsed)


def _failed(error: InfraError, wants_json: bool) -> int:
    if wants_json:
        emit_error(error.kind, error.statement, file=error.file, key=error.key, hint=error.hint)
    narrate_error(error)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
