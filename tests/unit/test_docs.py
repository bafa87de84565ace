"""The texts quote what is executed, and draw their tables from the code."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest

import airflow_provider_exactlyonce
from airflow_provider_exactlyonce.cli import pages
from airflow_provider_exactlyonce.control import supervision
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.failpoints import (
    BACKFILL_NAMES,
    COMPACTION_NAMES,
    CONVERSION_NAMES,
    HOME_COPY_NAMES,
    NAMES,
    RESCALE_NAMES,
    RESTORE_NAMES,
    SAVEPOINT_NAMES,
    SINK_NAMES,
)
from airflow_provider_exactlyonce.kafka import transaction
from airflow_provider_exactlyonce.upgrade.transitions import TRANSITIONS as UPGRADE_TRANSITIONS

ROOT = Path(__file__).parents[2]
RESCALE_STEPS = (*RESCALE_NAMES[:2], *RESTORE_NAMES[:2], RESCALE_NAMES[2], *RESTORE_NAMES[2:4])
QUOTE = re.compile(r"<!-- quote: (\S+) (\w+) -->\n```python\n(.*?)```", re.DOTALL)
NAMED_TEST = re.compile(r"\b((?:unit|integration)/[\w/]+\.py)\b")
QUOTING = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
QUOTES = [(file.name, *quote) for file in QUOTING for quote in QUOTE.findall(file.read_text())]


def marked(file: str, name: str) -> str:
    text = (ROOT / file).read_text()
    return text.split(f"# [START {name}]\n")[1].split(f"# [END {name}]")[0]


def test_a_test_that_is_named_is_there() -> None:
    texts = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), *(ROOT / "airflow_provider_exactlyonce").rglob("*.py")]
    named = {(text.name, name) for text in texts for name in NAMED_TEST.findall(text.read_text())}
    assert not [(text, name) for text, name in sorted(named) if not (ROOT / "tests" / name).exists()]
    assert len(named) > 20


@pytest.mark.parametrize(("document", "file", "name", "text"), QUOTES)
def test_a_quotation_is_what_the_file_says(document: str, file: str, name: str, text: str) -> None:
    assert text == marked(file, name), f"{document} quotes {file} as it was"


def test_the_readme_quotes_the_job_and_the_dag() -> None:
    assert [name for document, _, name, _ in QUOTES if document == "README.md"] == [
        "job_shop_totals",
        "dag_shop_totals",
    ]
    assert len(marked("dags/shop_totals.py", "dag_shop_totals").splitlines()) <= 40


@pytest.mark.parametrize(
    ("document", "transitions"), [("protocol", transaction.TRANSITIONS), ("supervise", supervision.TRANSITIONS)]
)
def test_states_are_drawn_from_their_table(document: str, transitions: Mapping[tuple[Enum, Enum], Enum]) -> None:
    rows = "".join(f"| {old.value} | {event.value} | {new.value} |\n" for (old, event), new in transitions.items())
    text = (ROOT / f"docs/{document}.md").read_text()
    assert text.split("| from | event | to |\n|---|---|---|\n")[1].split("<!-- end -->")[0] == rows


def test_the_steps_of_an_upgrade_are_drawn_from_their_table() -> None:
    rows = "".join(f"| {step} | {event.value} | {to} |\n" for (step, event), to in UPGRADE_TRANSITIONS.items())
    page = (ROOT / "docs/upgrades.md").read_text()
    drawn = page.split("| step | ends with | next |\n|---|---|---|\n")[1].split("<!-- end -->")[0]
    assert drawn == rows


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ("protocol", (*NAMES, *SINK_NAMES[:2], "during-send", *SINK_NAMES[2:])),
        ("savepoints", SAVEPOINT_NAMES),
        ("restore", RESTORE_NAMES),
        ("rescale", RESCALE_STEPS),
        ("backfill", (*RESTORE_NAMES[:2], *BACKFILL_NAMES)),
        ("file-sink", CONVERSION_NAMES),
        ("compaction", COMPACTION_NAMES),
        ("move-home", HOME_COPY_NAMES),
    ],
)
def test_every_fail_point_is_in_its_documents_table(document: str, names: tuple[str, ...]) -> None:
    assert re.findall(r"\| `([a-z]+(?:-[a-z]+)+)` \|", (ROOT / f"docs/{document}.md").read_text()) == list(names)


def error_classes() -> list[type[ExactlyOnceError]]:
    """Return every error of the package that people may see."""
    for module in pkgutil.walk_packages(airflow_provider_exactlyonce.__path__, "airflow_provider_exactlyonce."):
        importlib.import_module(module.name)
    classes, new = {ExactlyOnceError}, {ExactlyOnceError}
    while new := {subclass for error in new for subclass in error.__subclasses__()} - classes:
        classes |= new
    ours = [error for error in classes if error.__module__.startswith("airflow_provider_exactlyonce.")]
    return sorted((error for error in ours if not error.__name__.startswith("_")), key=lambda error: error.__name__)


def test_every_exit_code_has_a_row_that_leads_to_its_errors() -> None:
    codes = {error.exit_code for error in error_classes()} - {0, 1}
    rows = re.findall(r"^\| (?:\[(\d+)\]\(errors.md#([a-z0-9-]+)\)|0) \|", text_of("exit-codes"), re.MULTILINE)
    assert {int(code) for code, _ in rows if code} == codes
    assert {anchor for _, anchor in rows if anchor} <= {anchor_of(title) for title in titles_of("errors")}


def test_every_error_has_its_part_of_the_page_below_its_exit_code() -> None:
    errors = {error.__name__: error for error in error_classes()}
    parts = re.split(r"^## ", text_of("errors"), flags=re.MULTILINE)[1:]
    documented: list[str] = []
    for part in parts:
        codes = {int(code) for code in re.findall(r"\d+", part.splitlines()[0])}
        names = re.findall(r"^### (\w+)$", part, re.MULTILINE)
        assert {errors[name].exit_code for name in names} - {0} == codes, part.splitlines()[0]
        documented += names
    assert sorted(documented) == sorted(errors)


def test_every_error_names_its_part_of_the_page() -> None:
    for error in error_classes():
        assert error.page() == f"exactlyonce help {error.__name__}"
        assert pages.find(error.__name__.lower()).splitlines()[0] == f"### {error.__name__}"


def test_every_exit_code_of_an_error_has_help() -> None:
    for error in error_classes():
        if error.exit_code:
            assert f"\n### {error.__name__}\n" in pages.find(str(error.exit_code))


def test_a_page_is_printed_with_links_that_can_be_followed_there() -> None:
    for page in pages.titles():
        text = pages.find(page.upper())
        assert not re.search(r"\]\([\w/.-]+\.md", text), page
        for topic in re.findall(r"\(exactlyonce help ([\w-]+)\)", text):
            assert pages.find(topic)


def test_help_on_nothing_names_what_is_like_it() -> None:
    with pytest.raises(RefusedError, match=r"no help on 'savepoint': is it savepoints or"):
        pages.find("savepoint")


def test_messages_refer_to_pages_that_an_installed_package_can_show() -> None:
    for file in sorted(Path(airflow_provider_exactlyonce.__file__).parent.rglob("*.py")):
        tree = ast.parse(file.read_text())
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        for text in texts - docstrings:
            assert not re.search(r"docs/\S*\.md", text), f"{file}: {text}"
            for topic in re.findall(r"`exactlyonce help (\w[\w-]*)`", text):
                assert pages.find(topic), f"{file}: {text}"


def text_of(document: str) -> str:
    return (ROOT / f"docs/{document}.md").read_text()


def titles_of(document: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", text_of(document), re.MULTILINE)


def anchor_of(title: str) -> str:
    """Return the anchor that a page's title gets."""
    return re.sub(r"[^a-z0-9_ -]", "", title.lower()).replace(" ", "-")


def test_every_test_that_a_page_names_is_there() -> None:
    named = re.findall(r"`((?:unit|integration)/[\w/]+\.py)`", text_of("airflow-3"))
    assert len(named) > 30
    assert [file for file in named if not (ROOT / "tests" / file).is_file()] == []
