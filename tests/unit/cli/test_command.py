"""Every command tells what it does, how it is called and how it ends; options may stand before and after its name."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from airflow_provider_exactlyonce import exceptions
from airflow_provider_exactlyonce.cli.broker import EXIT_NOT_RUNNING
from airflow_provider_exactlyonce.cli.command import Command
from airflow_provider_exactlyonce.cli.main import INTERRUPTED, program
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError

PROGRAM = program()
ERRORS = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, ExactlyOnceError)]
KNOWN = {error.exit_code for error in ERRORS}


def walked(command: Command) -> Iterator[Command]:
    yield command
    for each in command.commands.values():
        yield from walked(each)


COMMANDS = list(walked(PROGRAM))
every_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.prog)


def test_there_are_commands_below_commands() -> None:
    assert {"exactlyonce", "exactlyonce run", "exactlyonce broker status"} <= {command.prog for command in COMMANDS}


@every_command
def test_help_has_a_line_an_example_and_the_exit_codes(command: Command) -> None:
    text = command.format_help()
    assert command.summary[0].islower() and not command.summary.endswith(".") and len(command.summary) < 90
    for part in (command.example, *command.exit_codes.values()):
        assert f"  {part}\n" in text


@every_command
def test_the_example_can_be_called(command: Command) -> None:
    words = shlex.split(command.example.removeprefix(command.prog))
    given = command.parse_args(words)
    assert callable(given.func)
    assert vars(given).items() <= vars(PROGRAM.parse_args(shlex.split(command.example)[1:])).items()


@every_command
def test_the_exit_codes_are_those_of_the_errors(command: Command) -> None:
    own = {EXIT_NOT_RUNNING} if command.prog == "exactlyonce broker status" else set()
    assert {0, 64} <= set(command.exit_codes) <= KNOWN | own | {2, INTERRUPTED}
    assert all(command.exit_codes.values())


@pytest.mark.parametrize(
    ("words", "options", "more"),
    [
        ("list", ["--json"], []),
        ("savepoint list", ["--json", "--home", "H"], ["shop"]),
        ("savepoint take", ["--label", "list", "--stop"], ["shop"]),
        ("savepoint clean-up", ["--count", "3", "--days=2"], ["shop"]),
        ("savepoint verify", ["--no-state", "--bootstrap", "h:1"], ["shop", "40-1f3a9c2e"]),
        ("state show", ["--batch", "3", "--key", "a=1"], ["shop"]),
        ("transactions list", ["--older-than", "60"], []),
        ("transactions abort", ["--yes", "--silent-for", "1"], ["abort"]),
        ("broker start", ["--data=here", "--port", "1"], []),
    ],
)
def test_options_may_stand_before_and_after_a_command(words: str, options: list[str], more: list[str]) -> None:
    *groups, name = words.split()
    wanted = PROGRAM.parse_args([*groups, name, *options, *more])
    assert PROGRAM.parse_args([*groups, *options, name, *more]) == wanted
    assert PROGRAM.parse_args([*groups, name, *more, *options]) == wanted
    if groups:
        assert PROGRAM.parse_args([*options, *groups, name, *more]) == wanted
    if name == "take":
        assert PROGRAM.parse_args([*groups, *options, *more]) == wanted


@pytest.mark.parametrize("words", ["savepoint --json", "broker", "transactions --json --yes"])
def test_a_command_must_be_named(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        PROGRAM.parse_args(words.split())
    assert "required: COMMAND" in capsys.readouterr().err
