"""The site has every page in its navigation and no dead link; judged without building it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

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
