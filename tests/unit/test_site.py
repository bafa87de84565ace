"""The site has every page in its navigation and no dead link; judged without building it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import io
import re
from pathlib import Path

import pytest
from docutils.core import publish_doctree
from sphinx.ext.napoleon.docstring import GoogleDocstring

from tests.unit.test_docs import anchor_of

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT).with_suffix(""))
    for folder in (".", "docs", "docs/model")
    for page in (ROOT / folder).glob("*.md")
)
LINK = re.compile(r"\]\(((?!\w+://)[^)\s#]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)

spec = importlib.util.spec_from_file_location("conf", ROOT / "scripts/site/conf.py")
assert spec is not None
assert spec.loader is not None
conf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(conf)


def test_every_page_is_in_the_navigation_once() -> None:
    linked = [page for pages in conf.NAVIGATION.values() for page in pages]
    written = [page for page in linked if not page.startswith(conf.REFERENCE)]
    assert sorted([conf.root_doc, *written]) == PAGES


def test_every_room_with_public_names_has_its_reference() -> None:
    assert set(conf.public_names()) == set(conf.ROOMS)


@pytest.mark.parametrize("page", PAGES)
def test_no_link_is_dead(page: str) -> None:
    file = ROOT / f"{page}.md"
    for target, anchor in LINK.findall(CODE.sub("", file.read_text())):
        linked = (file.parent / target) if target else file
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
            assert anchor in {anchor_of(title) for title in titles}, f"{target}#{anchor}"


@pytest.mark.parametrize("room", sorted(conf.public_names()))
def test_what_the_reference_takes_from_docstrings_is_laid_out_as_sphinx_reads_it(room: str) -> None:
    for module, name in conf.public_names()[room]:
        value = getattr(importlib.import_module(f"{conf.PACKAGE}.{module}"), name)
        members = [member for word, member in vars(value).items() if word[0] != "_"] if inspect.isclass(value) else []
        for documented in (value, *members):
            if inspect.isclass(documented) or inspect.isroutine(documented) or isinstance(documented, property):
                heard = io.StringIO()
                settings = {"warning_stream": heard, "report_level": 2}
                publish_doctree(str(GoogleDocstring(inspect.getdoc(documented) or "")), settings_overrides=settings)
                # Roles such as :class: are Sphinx's own, and unknown here.
                assert not re.search(r"indent|blank line|start-string", heard.getvalue()), f"{documented}"
