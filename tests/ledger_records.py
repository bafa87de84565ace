"""The smallest records of a ledger; a test says only what it is about."""

from __future__ import annotations

from typing import Any, Final

from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, LedgerPointer

_CLAIM: Final[dict[str, Any]] = {
    "pipeline": "p",
    "host": "h",
    "pid": 1,
    "token": "t",
    "lineage": "l",
    "version": "v",
    "home": "id",
    "home_path": "/home",
    "base_commit": 0,
    "claimed": 0,
    "before": LedgerPointer(),
}
_COMMIT: Final[dict[str, Any]] = {
    "pipeline": "p",
    "lineage": "l",
    "run": 1,
    "version": "v",
    "source": {},
    "source_topic_ids": {},
    "sink": {},
    "offsets": "",
    "watermark": 0,
    "batch_timestamp": 0,
    "rows": 0,
    "digest": 0,
    "producer_id": 1,
    "epoch": 1,
    "started": 0,
    "committed": 0,
    "before": LedgerPointer(),
}


def claim_record(run: int = 1, **fields: Any) -> ClaimRecord:
    """Return the claim of a run.

    :param fields: that differ
    """
    return ClaimRecord(**{**_CLAIM, "run": run, **fields})


def commit_record(commit: int = 1, **fields: Any) -> CommitRecord:
    """Return a commit that has read and written nothing; its batch is the one before its number.

    :param fields: that differ
    """
    return CommitRecord(**{**_COMMIT, "commit": commit, "batch": commit - 1, **fields})
