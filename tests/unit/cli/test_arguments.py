from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.cli import arguments, main
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.ledger import home as ledger_home
from tests.ledger_records import claim_record

FILES = sorted(Path(arguments.__file__).parent.glob("*.py"))


def test_what_several_commands_take_is_declared_once() -> None:
    texts = {file.name: file.read_text() for file in FILES}
    calls = {name: re.findall(r'add_argument\(\s*"([\w-]+)"(.*?)\)\n', text, re.DOTALL) for name, text in texts.items()}
    own = Counter((option, about) for declared in calls.values() for option, about in declared)
    assert len(own) > 30
    assert not [option for option, _ in own if option in arguments.SHARED]
    assert not [option for (option, _), times in own.items() if times > 1]


@pytest.mark.parametrize(
    "command",
    [
        ["stop"],
        ["savepoint"],
        ["savepoint", "list"],
        ["restore"],
        ["rescale", "--state-partitions", "2"],
        ["rollback"],
        ["upgrade", "PIPELINE", "job.py"],
        ["backfill", "--commits", "1..2"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("is_another_there", [False, True], ids=["not mounted", "another home at the same path"])
def test_a_home_that_this_machine_does_not_see_is_refused_and_nothing_is_made_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    is_another_there: bool,
) -> None:
    home = Home(tmp_path / "shop")
    if is_another_there:
        home.create("shop")
    before = sorted(tmp_path.rglob("*"))
    claim = claim_record(4, home="the ledger's", home_path=str(home))
    monkeypatch.setattr(reach, "reached", lambda servers: {"bootstrap.servers": servers})
    monkeypatch.setattr(ledger_home, "newest_claim", lambda config, pipeline: claim)
    given = ["shop" if word == "PIPELINE" else word for word in command]
    given = given if given != command else [*command, "shop"]
    assert main.main([*given, "--bootstrap-servers", "nowhere:1"]) == RefusedError.exit_code
    assert f"{home} is not the home of pipeline shop on this machine" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
