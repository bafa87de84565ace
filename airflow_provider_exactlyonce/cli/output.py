"""What the subcommands of ``exactlyonce`` answer: JSON for programs, lines for people."""

from __future__ import annotations

import argparse
import json


def print_answer(given: argparse.Namespace, body: object, text: str) -> None:
    """Print what a subcommand has to say, as JSON with ``--json``."""
    print(json.dumps(body, indent=2) if given.json else text)
