"""What the subcommands of ``exactlyonce`` answer: JSON for programs, lines for people."""

from __future__ import annotations

import argparse
import json
import sys


def print_answer(given: argparse.Namespace, body: object, text: str) -> None:
    """Print what a subcommand has to say, as JSON with ``--json``."""
    print(json.dumps(body, indent=2) if given.json else text)


def tell(text: str) -> None:
    """Tell people at once what is going on; what programs read is the answer only."""
    print(text, file=sys.stderr, flush=True)
