"""How a command is declared, so that its ``--help`` has a summary, an example, and the exit codes."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Command(argparse.ArgumentParser):
    """A command or a group of subcommands. Options may precede or follow the subcommand.

    :param summary: one line without a capital and a full stop
    :param example: arguments that it accepts
    :param exit_codes: the meaning of each
    :param details: further sentences
    :param default: the subcommand that runs when none is named
    :param others: arguments of the base
    """

    def __init__(
        self,
        *,
        summary: str,
        example: str,
        exit_codes: Mapping[int, str],
        details: str = "",
        default: str | None = None,
        **others: Any,
    ) -> None:
        super().__init__(
            description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}. {details}", 79),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **others,
        )
        self.summary, self.example, self.exit_codes = summary, f"{self.prog} {example}".rstrip(), exit_codes
        codes = [f"  {code:>2}  {meaning}" for code, meaning in sorted(exit_codes.items())]
        self.epilog = "\n".join(["example:", f"  {self.example}", "", "exit codes:", *codes])
        self.commands: dict[str, Command] = {}
        self._default = default
        self._adding: Any = None

    def add_command(
        self,
        name: str,
        function: Callable[[argparse.Namespace], int | None] | None = None,
        *,
        summary: str,
        exit_codes: Mapping[int, str] | None = None,
        **about: Any,
    ) -> Command:
        """Add a command and return it.

        :param function: runs it and returns the exit code, None for 0; None for a group of subcommands
        :param summary: as of the class
        :param exit_codes: codes with another meaning than here
        :param about: further arguments of the class
        """
        if self._adding is None:
            self._adding = self.add_subparsers(title="commands", required=True, metavar="COMMAND")
        codes = {**self.exit_codes, **(exit_codes or {})}
        command: Command = self._adding.add_parser(name, help=summary, summary=summary, exit_codes=codes, **about)
        command.set_defaults(func=function)
        self.commands[name] = command
        return command

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Parse as the base does, which accepts the subcommand as the first argument only."""
        return super().parse_known_args(self._name_first(list(args or ())), namespace)

    def _name_first(self, words: list[str]) -> list[str]:
        position = 0
        while position < len(words) and words[position].startswith("-"):
            position += 1 + self._takes_a_value(words[position])
        if not self.commands or position >= len(words):
            return words
        if self._default is not None and words[position] not in self.commands:
            return [self._default, *words]
        return [words[position], *words[:position], *words[position + 1 :]]

    def _takes_a_value(self, word: str) -> bool:
        """Whether the next word is the value of this subcommand's option; the option's name may be cut short."""
        options = self._options()
        return next((options[name].nargs != 0 for name in sorted(options) if name.startswith(word)), False)

    def _options(self) -> dict[str, argparse.Action]:
        """Return the options of this command and of those below it, by name."""
        options = dict(self._option_string_actions)
        for command in self.commands.values():
            options |= command._options()
        return options
