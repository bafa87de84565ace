"""The texts quote what is executed, and draw their tables from the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import exceptions
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.failpoints import NAMES, RESCALE_NAMES, RESTORE_NAMES, SAVEPOINT_NAMES
from airflow_provider_exactlyonce.kafka.transaction import TRANSITIONS

ROOT = Path(__file__).parents[2]
RESCALE_STEPS = (*RESCALE_NAMES[:2], *RESTORE_NAMES[:2], RESCALE_NAMES[2], RESTORE_NAMES[2])
QUOTE = re.compile(r"<!-- quote: (\S+) (\w+) -->\n```python\n(.*?)```", re.DOTALL)
QUOTES = [(file.name, *quote) for file in (ROOT / "README.md",) for quote in QUOTE.findall(file.read_text())]


def marked(file: str, name: str) -> str:
    text = (ROOT / file).read_text()
    return text.split(f"# [START {name}]\n")[1].split(f"# [END {name}]")[0]


@pytest.mark.parametrize(("document", "file", "name", "text"), QUOTES)
def test_a_quotation_is_what_the_file_says(document: str, file: str, name: str, text: str) -> None:
    assert text == marked(file, name), f"{document} quotes {file} as it was"


def test_the_readme_quotes_the_job_and_the_dag() -> None:
    assert [name for _, _, name, _ in QUOTES] == ["job_shop_totals", "dag_shop_totals"]
    assert len(marked("dags/shop_totals.py", "dag_shop_totals").splitlines()) <= 40


def test_the_states_of_the_producer_session_are_drawn_from_its_table() -> None:
    rows = "".join(f"| {old.value} | {event.value} | {new.value} |\n" for (old, event), new in TRANSITIONS.items())
    drawn = (
        (ROOT / "docs/protocol.md")
        .read_text()
        .split("| from | event | to |\n|---|---|---|\n")[1]
        .split("<!-- end -->")[0]
    )
    assert drawn == rows


@pytest.mark.parametrize(
    ("document", "names"), [("protocol", NAMES), ("savepoints", SAVEPOINT_NAMES), ("rescale", RESCALE_STEPS)]
)
def test_every_fail_point_is_in_its_documents_table(document: str, names: tuple[str, ...]) -> None:
    assert re.findall(r"\| `([a-z-]+)` \|", (ROOT / f"docs/{document}.md").read_text()) == list(names)


def test_every_exit_code_has_a_row() -> None:
    errors = [one for one in vars(exceptions).values() if isinstance(one, type) and issubclass(one, ExactlyOnceError)]
    codes = {error.exit_code for error in errors} - {1}
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "docs/exit-codes.md").read_text(), re.MULTILINE)}
    assert rows == codes
