"""What a driver's command line and environment say."""

from __future__ import annotations

import re

import pytest

from airflow_provider_exactlyonce.control import standbys
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.driver.options import EXIT_CODES, parse_arguments

GIVEN = ("--home", "/pipelines/shop", "--bootstrap-servers", "broker:9092")


def test_a_standby_is_its_supervisors_or_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = parse_arguments("shop", [*GIVEN, "--standby", "warm"])
    assert (alone.standby, alone.supervisor) == (True, None)
    monkeypatch.setenv(standbys.SUPERVISOR_VARIABLE, "4711 1234")
    assert parse_arguments("shop", [*GIVEN, "--standby", "warm"]).supervisor == "4711 1234"
    assert not parse_arguments("shop", GIVEN).standby


def test_a_backfill_has_no_standby() -> None:
    with pytest.raises(RefusedError, match="--standby warm is not for a backfill"):
        parse_arguments("shop", [*GIVEN, "--standby", "warm", "--backfill"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--untill", "forever"), "unrecognized arguments: --untill forever"),
        (("--standby", "cold"), "argument --standby: invalid choice: 'cold'"),
        (("--interval",), "argument --interval: expected one argument"),
    ],
)
def test_wrong_arguments_are_refused_and_so_not_tried_again(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(f"arguments of the driver: {said}")):
        parse_arguments("shop", [*GIVEN, *arguments])


def test_a_driver_without_a_home_is_refused() -> None:
    with pytest.raises(RefusedError, match="the following arguments are required: --home"):
        parse_arguments("shop", [])


def test_help_has_an_example_that_is_accepted_and_the_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["job.py"])
    with pytest.raises(SystemExit):
        parse_arguments("shop", ["--help"])
    shown = capsys.readouterr().out
    example = re.search(r"^example:\n  job\.py (.*)$", shown, re.MULTILINE)
    assert example is not None
    assert parse_arguments("shop", example[1].split()).until == "available"
    assert [int(code) for code in re.findall(r"^ +(\d+)  ", shown, re.MULTILINE)] == sorted(EXIT_CODES)
