"""Where an Iceberg table can be: pyiceberg has a path of its own for each file, or the location is refused."""

from __future__ import annotations

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.properties import check_location


@pytest.mark.parametrize(
    "scheme", ["", "file://", "file:", "s3://bucket", "hdfs://node", "abfss://a@b.dfs.core.windows.net"]
)
@pytest.mark.parametrize("path", ["/shop", "/a#b/shop", "/shop?", "/a;b/shop", "/a%23b/shop", "/ü b/shop"])
def test_a_location_is_refused_where_two_files_would_be_one(scheme: str, path: str) -> None:
    location = f"{scheme}{path}"
    files = {PyArrowFileIO.parse_location(f"{location}/{name}") for name in ("one", "other")}
    if len(files) > 1:
        check_location(location, "table lake.shop.events")
        return
    with pytest.raises(
        RefusedError, match=r"^table lake\.shop\.events is in '.*', and pyiceberg ends the path at '[#?]'"
    ):
        check_location(location, "table lake.shop.events")
