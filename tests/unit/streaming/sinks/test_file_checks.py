"""What is refused of the place of a sink's files before anything is opened."""

from __future__ import annotations

import re

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_plain, has_secret

AZURE = "dfs.core.windows.net/shop"


@pytest.mark.parametrize(
    "path", ["s3://lake/a@b", "/lake/a@b:c", f"abfss://lake@account.{AZURE}", f"wasb://lake@account.{AZURE}"]
)
def test_the_container_of_an_account_is_no_secret(path: str) -> None:
    assert not has_secret(path)


@pytest.mark.parametrize(
    "path",
    [
        *("s3://KEY:hush@lake/shop", "https://hush@host/shop", "hdfs://me:hush@namenode/shop"),
        *(f"abfss://me:hush@account.{AZURE}", f"abfss://lake:hush@account.{AZURE}"),
    ],
)
def test_what_is_before_another_host_may_be_one(path: str) -> None:
    assert has_secret(path)


@pytest.mark.parametrize(
    ("path", "taken"), [("/lake/a%20b", "%20"), ("/lake/a\\b", "\\"), ("file:///lake/a\\b", "\\"), ("/lake/%5c", "%5c")]
)
def test_a_local_path_that_delta_rs_takes_for_another_is_refused(path: str, taken: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(f"delta-rs takes {taken!r} for another character: rename it")):
        check_plain("DeltaSink", path)


@pytest.mark.parametrize("path", ["/lake/a%b", "/lake/a b", "s3://lake/a%20b", "s3://lake/a\\b"])
def test_other_paths_are_taken(path: str) -> None:
    check_plain("DeltaSink", path)


def test_an_old_url_of_azure_is_refused_with_the_one_to_write() -> None:
    with pytest.raises(RefusedError, match=r"no wasbs://; write abfss://lake@shop\.dfs\.core\.windows\.net/orders$"):
        check_plain("DeltaSink", "wasbs://lake@shop.blob.core.windows.net/orders")
