"""Upgrades at the command line, with real drivers under load, and a record-by-record comparison of what they wrote."""

from __future__ import annotations

import json

import pytest

from tests.integration.upgrade.harness import Story


def names(story: Story) -> dict[str, str]:
    """Return which version has which name, from the copies in the home."""
    from pathlib import Path

    from airflow_provider_exactlyonce.control import releases

    found = {}
    for directory in (story.home.path / "applications").iterdir():
        known = releases.application(story.home, directory.name)
        assert known is not None
        found[directory.name] = Path(known.path).stem
    return found


@pytest.mark.timeout(300)
def test_an_upgrade_under_load_loses_and_doubles_nothing(story: Story) -> None:
    with story.load():
        story.start()
        intended = ["--compare", "k,start,total,n", "--allow", "changed", "--allow", "missing"]
        done = story.upgrade("second", "--shadow-commits", "3", *intended, "--stable-after", "2")
        assert done.returncode == 0, done.stderr[-5000:]
    answer = json.loads(done.stdout)
    assert (answer["outcome"], answer["changed"], story.in_use()) == ("done", True, "second")
    assert answer["shadow"]["columns"] == ["k", "start", "total", "n"]
    story.drain()
    assert story.run("stop").returncode == 0
    assert story.check(names(story)) == ["first", "second"]
