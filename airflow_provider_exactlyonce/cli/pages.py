"""The documentation, as the command ``exactlyonce help`` prints it: an installed package has no other."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.exceptions import RefusedError

_ERRORS: Final = "errors"
_ERROR: Final = re.compile(r"^### (\w+)$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^][]+)\]\(([^()\s]+)\)")
_PAGE_LINK: Final = re.compile(r"([\w-]+)\.md(#.*)?")


def titles() -> dict[str, str]:
    """Return the title of each page, by its name."""
    return {file.stem: file.read_text().partition("\n")[0].lstrip("# ") for file in sorted(_folder().glob("*.md"))}


def errors() -> list[str]:
    """Return the errors that have a part of their own, in the order of their page."""
    return _ERROR.findall(_text(_ERRORS))


def find(topic: str) -> str:
    """Return the documentation of a topic.

    :param topic: a page's name, an error's name, or an exit code; upper and lower case are the same
    :raises RefusedError: when there is no such topic; suggests similar names
    """
    pages, parts = {name.casefold(): name for name in titles()}, {name.casefold(): name for name in errors()}
    name = topic.casefold().removesuffix(".md")
    if name in pages:
        return _plain(_text(pages[name]))
    if name in parts:
        return _plain(_part(rf"### {parts[name]}$", r"##"))
    if topic.isdigit() and (section := _part(rf"## [^\n]*: exit codes? [^\n]*\b{topic}\b", "## ")):
        return _plain(section)
    topics = {**pages, **parts}
    close = [topics[folded] for folded in get_close_matches(name, topics, n=3)]
    more = f"is it {' or '.join(close)}?" if close else "`exactlyonce help` lists all topics"
    raise RefusedError(f"there is no help on {topic!r}: {more}")


def _folder() -> Path:
    """Return where the pages are: a wheel holds a copy of the folder that a checkout has beside the package."""
    package = Path(__file__).parents[1]
    packed = package / "docs"
    return packed if packed.is_dir() else package.parent / "docs"


def _text(page: str) -> str:
    return (_folder() / f"{page}.md").read_text()


def _part(heading: str, following: str) -> str:
    """Return the part of the page of errors from a heading up to the following one, empty when it has none."""
    match = re.search(rf"^{heading}.*?(?=^{following}|\Z)", _text(_ERRORS), re.MULTILINE | re.DOTALL)
    return match[0] if match else ""


def _plain(text: str) -> str:
    """Return a page with links that can be followed at a command line."""
    return _LINK.sub(_plain_link, text).strip()


def _plain_link(link: re.Match[str]) -> str:
    words, target = link.groups()
    page = _PAGE_LINK.fullmatch(target)
    if page is not None:
        anchor = (page[2] or "")[1:]
        topic = anchor if page[1] == _ERRORS and anchor in [name.lower() for name in errors()] else page[1]
        return f"{words} (exactlyonce help {topic})"
    return f"{words} ({target})" if "://" in target else words
