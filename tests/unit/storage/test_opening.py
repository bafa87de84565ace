"""What a location names, here and for Spark."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage import gcs_environment, s3_environment
from airflow_provider_exactlyonce.storage.opening import hadoop_url, location_of, place_of, store_of

VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("location", ["{}/home", "file:{}/home", "file://{}/home"])
def test_a_path_and_a_file_uri_are_of_this_machine(tmp_path: Path, location: str) -> None:
    place = place_of(location.format(tmp_path))
    assert place == tmp_path / "home"
    assert hadoop_url(place) == f"file:{tmp_path}/home"


@pytest.mark.parametrize("name", ["shop#1", "shop?x", "my%20shop", "a;b"])
@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}"])
def test_nothing_in_a_file_uri_is_left_out_or_decoded(tmp_path: Path, form: str, name: str) -> None:
    assert place_of(form.format(tmp_path / name)) == tmp_path / name


def test_a_path_with_a_colon_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of(Path("team:a/shop")) == tmp_path / "team:a" / "shop"


def test_a_file_uri_of_another_machine_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"names a machine, 'data', and .* of this one: give 'file:/data/shop'"):
        place_of("file://data/shop")


@pytest.mark.parametrize("location", ["s3://bucket/pipelines/shop", "s3://aws_default@bucket/pipelines/shop/"])
def test_a_place_in_a_bucket_is_the_same_with_and_without_a_connection(location: str) -> None:
    place = place_of(location)
    assert str(place) == "s3://bucket/pipelines/shop"
    assert hadoop_url(place) == "s3a://bucket/pipelines/shop"
    assert hadoop_url(place / "lineages") == "s3a://bucket/pipelines/shop/lineages"
    assert place_of(place) is place


@pytest.mark.parametrize("location", ["hdfs://namenode:8020/pipelines/shop", "hdfs://nameservice/pipelines/shop"])
def test_a_place_on_hdfs_keeps_its_name_node(location: str) -> None:
    place = place_of(location)
    assert location_of(place) == hadoop_url(place) == str(Home(location)) == location
    assert location_of(place / "control" / "lease.json") == f"{location}/control/lease.json"
    assert location_of(place_of(location_of(place)).parent) == location.removesuffix("/shop")


@pytest.mark.parametrize(
    ("location", "package", "extra"),
    [
        ("s3://bucket/home", "s3fs", "s3"),
        ("gs://bucket/home", "gcsfs", "gcs"),
        ("abfss://container/home", "adlfs", "azure"),
        ("hdfs://namenode:8020/home", "hdfs-native", "hdfs"),
    ],
)
def test_a_client_that_is_not_installed_is_named(
    location: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RefusedError, match=f"{package}, which .* is not installed: install .*exactlyonce\\[{extra}]"):
        place_of(location)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("webhdfs://a/b", r"'webhdfs://a/b': a home is .*s3://, gs://, abfss://, hdfs://; webhdfs: is not read"),
        ("abfss://bucket", "names no directory: give abfss://container/directory"),
        ("abfss://box@orders.dfs.core.windows.net/x", "names the account with the container: give abfss://container"),
        ("gs://bucket", "names no directory: give gs://bucket/directory"),
        ("s3://bucket", "names no directory"),
        ("s3:///home", "names no directory"),
        ("hdfs:///home", "names no directory: give hdfs://host:port/directory"),
    ],
)
def test_what_no_home_can_be_on_is_refused_by_name(location: str, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        place_of(location)


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        *(("team-*/shop", "*"), ("shop?1", "?"), ("shop[1]", "["), ("a#1", "#"), ("shop;v=2/x", ";"), ("shop#", "#")),
        *(("a//b", "/"), ("a/../b", "/.."), ("a/./b", "/."), ("a/..", "/..")),
    ],
)
@pytest.mark.parametrize("server", ["s3://bucket", "gs://bucket", "hdfs://namenode:8020"])
def test_a_name_that_one_client_reads_otherwise_is_refused(server: str, name: str, odd: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(f"{server}/{name}' has {odd!r} in it")):
        place_of(f"{server}/{name}")


@pytest.mark.parametrize("name", ["a b", "a%2Fb%20c", "ü+&=@:,'!(1)~", "..a/b..", ".a"])
@pytest.mark.parametrize("server", ["s3://bucket", "gs://bucket", "hdfs://namenode:8020"])
def test_any_other_name_is_taken_as_it_is(server: str, name: str) -> None:
    place: Any = place_of(f"{server}/pipelines/{name}/")
    assert location_of(place) == f"{server}/pipelines/{name}"
    assert location_of(place_of(location_of(place))) == f"{server}/pipelines/{name}"


@pytest.mark.parametrize("location", ["s3://key:hunter2@[bucket/home", "s3://key:hunter2@b\u2100/home"])
def test_what_is_no_url_is_refused_and_not_shown(location: str) -> None:
    with pytest.raises(RefusedError, match="is no URL") as refused:
        place_of(location)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("home", ["s3://bucket/home", "s3://bucket", "abfss://bucket/home"])
def test_a_password_is_refused_and_not_shown(home: str) -> None:
    with pytest.raises(RefusedError, match=f"'{home}' has a password in it") as refused:
        place_of(home.replace("://", "://key:hunter2@"))
    assert "hunter2" not in str(refused.value)


def test_python_and_hadoop_are_told_the_same_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "client_kwargs" not in s3_environment.options_of_environment()
    assert "fs.s3a.endpoint" not in s3_environment.hadoop_settings()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert s3_environment.options_of_environment()["client_kwargs"] == {"region_name": "eu-central-1"}
    assert s3_environment.hadoop_settings()["fs.s3a.endpoint.region"] == "eu-central-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert s3_environment.options_of_environment() == {
        "use_listings_cache": False,
        "client_kwargs": {"region_name": "eu-west-1"},
        "endpoint_url": "http://127.0.0.1:9000",
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }
    assert (
        s3_environment.hadoop_settings().items()
        >= {
            "fs.s3a.endpoint.region": "eu-west-1",
            "fs.s3a.endpoint": "http://127.0.0.1:9000",
            "fs.s3a.path.style.access": "true",
        }.items()
    )


def test_a_place_on_google_cloud_storage_is_opened_with_what_google_s_libraries_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place: Any = place_of("gs://google_cloud_default@bucket/pipelines/shop/")
    assert str(place) == hadoop_url(place) == "gs://bucket/pipelines/shop"
    assert place.storage_options == {"use_listings_cache": False, "access": "read_write", "token": "google_default"}
    assert gcs_environment.hadoop_settings()["fs.gs.auth.type"] == "APPLICATION_DEFAULT"
    assert "fs.gs.storage.root.url" not in gcs_environment.hadoop_settings()
    for address in ("127.0.0.1:4443", "http://127.0.0.1:4443/"):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        assert gcs_environment.options_of_environment()["endpoint_url"] == "http://127.0.0.1:4443"
        assert gcs_environment.options_of_environment()["token"] == "anon"
        settings = gcs_environment.hadoop_settings()
        assert settings["fs.gs.auth.type"] == "UNAUTHENTICATED"
        assert settings["fs.gs.storage.root.url"] == "http://127.0.0.1:4443/"


def test_without_credentials_nothing_is_known_and_nobody_is_anonymous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    with pytest.raises(OSError, match=r"nothing\.json was not found"):
        store_of(place_of("gs://bucket/home"))


def test_keys_that_end_go_to_hadoop_with_their_token_and_no_keys_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    assert s3_environment.hadoop_keys() == {}
    given = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_SESSION_TOKEN": "of an hour"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert s3_environment.hadoop_keys() == {
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        "fs.s3a.access.key": "key",
        "fs.s3a.secret.key": "hunter2",
        "fs.s3a.session.token": "of an hour",
    }


@pytest.mark.parametrize("text", ["hunter2", '["hunter2"]', '{"PATH": "hunter2"}'])
def test_what_is_no_environment_of_a_store_is_refused_and_not_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(s3_environment.VARIABLE, text)
    with pytest.raises(RefusedError, match="EXACTLYONCE_S3 has to be a JSON object of AWS_… variables") as refused:
        s3_environment.take_up()
    assert "hunter2" not in str(refused.value)
