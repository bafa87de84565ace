"""What a mistake in a pipeline's function is told as, when Spark plans it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.job import loader, mistakes

JOB = """
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline

@pipeline(name="p", source=KafkaSource("in", schema="id BIGINT, k STRING"), sink=KafkaSink("out"))
def p(events):
    return events{steps}
"""


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (".select('kk')", "Spark can't run this job: [UNRESOLVED_COLUMN"),
        (".where('k = ')", "Spark can't run this job: [PARSE_SYNTAX_ERROR]"),
        (".select(events.kk)", "kk"),
        (".selekt('k')", "selekt"),
        (".limit('k' + 1)", "the pipeline's function fails: TypeError"),
    ],
)
def test_a_mistake_in_the_function_is_one_sentence_with_the_jobs_line(
    spark: Any, tmp_path: Path, steps: str, said: str
) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB.format(steps=steps))
    pipeline = loader.load(str(job))
    with pytest.raises(Exception, match=r".*") as raised:
        pipeline.planned(spark)
    meaning = mistakes.meaning_in_function(raised.value, str(job))
    assert type(meaning) is RefusedError
    assert str(meaning).startswith(f"{job}:6: ")
    assert said in str(meaning)
    assert "\n" not in str(meaning), "no plan"


def test_what_the_function_looks_up_may_fail_for_a_while(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB.format(steps=" and open_it()") + "\ndef open_it():\n    raise ConnectionError('no answer')\n")
    pipeline = loader.load(str(job))
    with pytest.raises(ConnectionError) as raised:
        pipeline.function(True)
    assert mistakes.meaning_in_function(raised.value, str(job)) is None
