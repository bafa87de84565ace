"""A job's file that is replaced while it is started: what is executed is what is hashed and kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import releases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.job import loader

#: A job that does something to its own file between two of its statements.
JOB = """
{before}
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


@pipeline(name="shop", source=KafkaSource("in"), sink=KafkaSink("out", key="key"))
def shop(events):
    return events


{after}
if __name__ == "__main__":
    print(shop.version, shop.job_hash, shop.job.path, flush=True)
"""
REPLACE = "from pathlib import Path; Path(__file__).write_text('raise SystemExit(7)')"
OTHER = "\nOTHER = 1\n"


def job(folder: Path, *, before: str = "", after: str = "", name: str = "job.py") -> Path:
    file = folder / name
    file.write_text(JOB.format(before=before, after=after))
    return file


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_that_is_replaced_after_it_was_loaded_is_still_the_version_that_was(tmp_path: Path) -> None:
    file = job(tmp_path)
    content = file.read_bytes()
    loaded = loader.load(str(file))
    version = loaded.version
    file.write_text(file.read_text() + OTHER)
    assert (loaded.version, loaded.job_hash) == (version, sha(content))
    assert loader.load(str(file)).version != version, "the file is another version now"

    home = Home(str(tmp_path / "home"))
    assert loaded.job is not None
    releases.keep(home, version, loaded.job.path, loaded.job.content)
    known = releases.application(home, version)
    assert known is not None
    assert known.file == home.path / "applications" / version / "job.py", "a rollback does not start the new file"
    assert known.file.read_bytes() == content


def test_a_file_that_is_replaced_while_it_is_executed_is_the_version_that_is_executed(tmp_path: Path) -> None:
    file = job(tmp_path, before=REPLACE)
    content = file.read_bytes()
    loaded = loader.load(str(file))
    assert file.read_text() == "raise SystemExit(7)"
    assert loaded.job_hash == sha(content)


def test_a_stale_cache_of_compiled_code_is_not_what_is_executed(tmp_path: Path) -> None:
    file = job(tmp_path)
    loaded = loader.load(str(file))
    changed = file.read_bytes().replace(b'"in"', b'"at"')
    before = file.stat()
    file.write_bytes(changed)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = loader.load(str(file))
    assert str(again.sources[""].topics) == "at"
    assert (again.job_hash, again.version == loaded.version) == (sha(changed), False)


def test_a_symbolic_link_that_is_switched_later_leads_to_the_file_that_was_executed(tmp_path: Path) -> None:
    old = job(tmp_path, name="old.py")
    new = job(tmp_path, after=OTHER, name="new.py")
    link = tmp_path / "current.py"
    link.symlink_to(old)
    loaded = loader.load(str(link))
    link.unlink()
    link.symlink_to(new)
    assert loaded.job is not None
    assert (loaded.job.path, loaded.job.content) == (old, old.read_bytes())


def test_what_is_kept_of_a_version_is_never_replaced_by_another_file(tmp_path: Path) -> None:
    home, file = Home(str(tmp_path / "home")), job(tmp_path)
    releases.keep(home, "v1", file, b"one")
    with pytest.raises(RefusedError, match=r"applications/v1 has another file as version v1 .*move the directory away"):
        releases.keep(home, "v1", file, b"two")
    with pytest.raises(RefusedError, match="has another file as version v1"):
        releases.check_kept(home, "v1", sha(b"two"))
    known = releases.application(home, "v1")
    assert known is not None
    assert known.kept.read_bytes() == b"one"


def test_a_kept_file_that_was_damaged_or_has_another_name_now_is_kept_whole(tmp_path: Path) -> None:
    home, file = Home(str(tmp_path / "home")), job(tmp_path)
    releases.keep(home, "v1", file, b"one")
    (home.path / "applications/v1/job.py").write_bytes(b"on")
    assert releases.application(home, "v1") is None
    releases.keep(home, "v1", file, b"one")
    assert releases.application(home, "v1") is not None
    releases.keep(home, "v1", tmp_path / "renamed.py", b"one")
    known = releases.application(home, "v1")
    assert known is not None
    assert (known.kept.name, known.kept.read_bytes()) == ("renamed.py", b"one")
