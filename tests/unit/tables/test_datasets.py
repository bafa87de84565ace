"""The names of datasets."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.tables.datasets import dataset_at


@pytest.mark.parametrize(
    ("location", "dataset"),
    [
        ("/lake/orders", ("file", "/lake/orders")),
        ("/lake/a#b?c:d", ("file", "/lake/a#b?c:d")),
        ("/lake/orders/", ("file", "/lake/orders")),
        ("file:/lake/orders", ("file", "/lake/orders")),
        ("file:///lake/orders", ("file", "/lake/orders")),
        ("s3://lake/shop/orders/", ("s3://lake", "shop/orders")),
        ("s3a://lake/shop/orders", ("s3://lake", "shop/orders")),
        ("s3://AKIA:secret@lake/shop", ("s3://lake", "shop")),
        ("hdfs://namenode:9000/lake/orders", ("hdfs://namenode:9000", "lake/orders")),
        ("abfss://box@shop.dfs.core.windows.net/orders", ("abfss://box@shop.dfs.core.windows.net", "orders")),
    ],
)
def test_a_directory_has_openlineages_name(location: str, dataset: tuple[str, str]) -> None:
    assert dataset_at(location) == dataset
