"""`nvib`: the text toolkit on the command line.

A mistake of the user is one line and exit code 2. What a command needs is imported when it runs, so that `--help` and
wrong options are answered in a fraction of a second.
"""

import os
import signal
import sys

from open_nvib.cli.commands import NVIB
from open_nvib.cli.parser import call, parse, stop
from open_nvib.store.files import InputError, disk_trouble, in_one_line


def main(arguments: list[str] | None = None) -> None:
    """Run a command; the exit code is 2 for a mistake in what was given."""
    _open_streams()
    try:
        call(NVIB, parse(NVIB, sys.argv[1:] if arguments is None else arguments))
    except InputError as error:
        stop(str(error))
    except KeyboardInterrupt:
        print("nvib: interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        stop(f"not enough memory ({in_one_line(error)}). Give smaller sizes, or fewer texts at a time.")
    except Exception as error:
        reason = disk_trouble(error)
        if reason is None:
            raise
        fix = "Free some, and run" if reason.startswith("no space") else "Change that, and run"
        stop(f"{getattr(error, 'filename', None) or 'the disk'}: {reason}. {fix} the same command again.")


def _open_streams() -> None:
    """Open the standard streams that the caller closed, and let those of another encoding than UTF-8 take any text."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
