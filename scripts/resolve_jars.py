"""Fill the per-user cache with the embedded broker's jars, with a line that says how far it is."""

from __future__ import annotations

import sys

from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.jars import jar_directory, resolve

ERASE_LINE = "\r\033[K"


def show(line: str) -> None:
    """Print a progress line, over the last one where that is possible."""
    if sys.stdout.isatty():
        print(f"{ERASE_LINE}  {line}", end="", flush=True)
    else:
        print(f"  {line}", flush=True)


def main() -> int:
    """Resolve, and turn what is missing into one message."""
    try:
        resolve(show)
    except DevkitError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{ERASE_LINE if sys.stdout.isatty() else ''}  The jars are in {jar_directory()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
