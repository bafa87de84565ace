"""What Azure's storage does only now and then, and no emulation ever."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core import MatchConditions

from airflow_provider_exactlyonce.storage import azure
from airflow_provider_exactlyonce.storage.azure import AzureStore
from tests.clocks import StandingClock


class CopiedBlob:
    """A blob that Azure copies by itself.

    :param until: seconds after which the copy gets no further
    :param replaced: whether somebody else writes the blob as soon as the copy is aborted
    """

    url = "https://shop.blob.core.windows.net/bucket/a"

    def __init__(self, clock: StandingClock, until: float, size: float, *, replaced: bool) -> None:
        self._clock, self._began, self._until, self._size = clock, clock.now, until, size
        self._replaced = replaced
        self.copy_id = "7"
        self.ended: list[str] = []

    def start_copy_from_url(self, url: str) -> dict[str, str]:
        return {"copy_id": "7", "copy_status": "pending"}

    def get_blob_properties(self) -> Any:
        done = min(self._clock.now - self._began, self._until)
        status = "success" if done >= self._size else "pending"
        copy = SimpleNamespace(id=self.copy_id, status=status, progress=f"{done:.0f}/{self._size:.0f}")
        return SimpleNamespace(copy=copy, etag=f"etag-of-{self.copy_id}")

    def abort_copy(self, copy_id: str) -> None:
        self.ended.append(f"aborted {copy_id}")
        if self._replaced:
            self.copy_id = "of somebody else"

    def delete_blob(self, *, etag: str, match_condition: MatchConditions) -> None:
        assert match_condition is MatchConditions.IfNotModified
        self.ended.append(f"deleted {etag}")


@pytest.mark.parametrize(
    ("until", "replaced", "ended"),
    [
        (2000, False, []),
        (1000, False, ["aborted 7", "deleted etag-of-7"]),
        (1000, True, ["aborted 7"]),
    ],
)
def test_a_copy_within_azure_is_waited_for_as_long_as_it_gets_further(
    monkeypatch: pytest.MonkeyPatch, until: float, replaced: bool, ended: list[str]
) -> None:
    standing = StandingClock()
    monkeypatch.setattr(azure, "time", standing)
    blob = CopiedBlob(standing, until, 2000, replaced=replaced)
    nobody: Any = None
    place, store = Path("a"), AzureStore(nobody, nobody, nobody)
    monkeypatch.setattr(store, "_blob", lambda _: blob)
    began = standing.now
    if ended:
        with pytest.raises(OSError, match=r"a is given up: it got no further than 1000/2000 .* for 300 s"):
            store.copy(place, place)
        assert standing.now - began < 1302
    else:
        store.copy(place, place)
        assert standing.now - began >= 2000
    assert blob.ended == ended
