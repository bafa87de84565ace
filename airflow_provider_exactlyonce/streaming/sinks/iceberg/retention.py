"""Which snapshots of a table are past its retention, as Iceberg's ``expire_snapshots`` has it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_AGE: Final = "history.expire.max-snapshot-age-ms"
_LEAST: Final = "history.expire.min-snapshots-to-keep"
_COLLECTS: Final = "gc.enabled"
_DEFAULT_AGE_MS: Final = 5 * 24 * 60 * 60 * 1000


def expired(table: TableMetadata, now_ms: int, named: Collection[int]) -> list[int]:
    """Return the ids of the snapshots that may go; those behind which a branch or a tag stands stay.

    :param now_ms: milliseconds since the epoch
    :param named: snapshots that the ledger of a sink names: main keeps leading to such a one as long as it is kept
    """
    if table.properties.get(_COLLECTS, "true").lower() != "true":
        return []
    age, least = int(table.properties.get(_AGE, _DEFAULT_AGE_MS)), int(table.properties.get(_LEAST, 1))
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots}
    kept, referred = set[int](), set[int]()
    for ref in table.refs.values():
        kept.add(ref.snapshot_id)
        referred.add(ref.snapshot_id)
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH:
            since = now_ms - (age if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms)
            count = least if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
            is_young = True
            for number, snapshot in enumerate(_back_from(ref.snapshot_id, snapshots)):
                referred.add(snapshot.snapshot_id)
                is_young = is_young and (number < count or snapshot.timestamp_ms >= since)
                if is_young:
                    kept.add(snapshot.snapshot_id)
    kept |= {
        key for key, snapshot in snapshots.items() if key not in referred and snapshot.timestamp_ms >= now_ms - age
    }
    if MAIN_BRANCH in table.refs:
        ancestors = [snapshot.snapshot_id for snapshot in _back_from(table.refs[MAIN_BRANCH].snapshot_id, snapshots)]
        last = max((number for number, key in enumerate(ancestors) if key in kept and key in named), default=-1)
        kept.update(ancestors[: last + 1])
    return [key for key in snapshots if key not in kept]


def _back_from(key: int | None, snapshots: dict[int, Snapshot]) -> Iterator[Snapshot]:
    while key is not None and key in snapshots:
        yield snapshots[key]
        key = snapshots[key].parent_snapshot_id
