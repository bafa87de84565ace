"""The page about the Kafka source says what the source does."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline

PAGE = (Path(__file__).parents[4] / "docs/kafka-source.md").read_text()
REFUSED = re.findall(r"^\| `((?:KafkaSource|pipeline)\(.*\))` \| `(.*)` \|$", PAGE, re.MULTILINE)


def test_every_option_is_on_the_page_with_its_default() -> None:
    defaults = {
        one.name: "required"
        if one.default is MISSING and one.default_factory is MISSING
        else f"`{one.default_factory() if one.default_factory is not MISSING else one.default!r}`"
        for one in fields(KafkaSource)
    }
    table = PAGE.split("## Options")[1].split("\n\n")[1]
    assert dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", table, re.MULTILINE)) == defaults


@pytest.mark.parametrize(("declaration", "message"), REFUSED)
def test_what_the_page_says_is_refused_is(declaration: str, message: str) -> None:
    names = {"KafkaSource": KafkaSource, "KafkaSink": KafkaSink, "pipeline": pipeline}
    with pytest.raises(RefusedError, match=re.escape(message)):
        eval(declaration, names)


def test_the_page_lists_refusals() -> None:
    assert len(REFUSED) == 7
