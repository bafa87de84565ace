"""The subcommand ``exactlyonce help``."""

from __future__ import annotations

import argparse
import os
import sys

from airflow_provider_exactlyonce.cli import pages
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.text_tables import table


def add_to(program: Command) -> None:
    """Add the command to the program."""
    command = program.add_command(
        "help",
        _help,
        summary="print what an error means and what to do, or a page of the documentation",
        details="Without TOPIC it lists what there is.",
        example="RefusedError",
        exit_codes={0: "printed", 64: "there is no such topic"},
    )
    command.add_argument("topic", nargs="?", metavar="TOPIC", help="an error's name, an exit code, or a page's name")


def _help(given: argparse.Namespace) -> None:
    rows = [{"page": name, "about": title} for name, title in pages.titles().items()]
    end = "exactlyonce help TOPIC prints one of them; exactlyonce COMMAND --help is for a command"
    text = f"{table(rows)}\n\nerrors: {', '.join(pages.errors())}\n\n{end}" if given.topic is None else None
    try:
        print(text or pages.find(given.topic), flush=True)
    except BrokenPipeError:  # a pager has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
