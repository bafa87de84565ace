"""A pipeline as an asset: its events are the committed ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Asset, AssetWatcher

from airflow_provider_exactlyonce.ledger.ranges import CommittedRange, Unit
from airflow_provider_exactlyonce.triggers.committed_ranges import CommittedRangesTrigger

if TYPE_CHECKING:
    from urllib.parse import SplitResult


def pipeline_asset(
    pipeline: str,
    *,
    partition: Unit | None = None,
    start: Literal["newest", "oldest"] = "newest",
    kafka_conn_id: str = "kafka_default",
    poll_interval: float = 1.0,
) -> Asset:
    """Return the asset of a pipeline, watched: a DAG that it schedules runs when the pipeline has committed.

    Each event has one committed range in its ``extra``; :func:`committed_ranges` reads it. Nothing committed is left
    out, whatever happens to the triggerer; a range may come twice, with the same key.

    :param pipeline: name of the pipeline
    :param partition: ``"hour"`` or ``"day"``: an event when the watermark has completed one or more of them, and not
        with every commit
    :param start: where to begin when no event has been sent yet: after the newest commit, or at the oldest commit that
        the ledger has
    :param kafka_conn_id: connection of type ``kafka``
    :param poll_interval: seconds between two looks at the ledger
    """
    uri = f"exactlyonce://{kafka_conn_id}/{pipeline}" + (f"/{partition}" if partition else "")
    trigger = CommittedRangesTrigger(
        asset=uri,
        pipeline=pipeline,
        partition=partition,
        start=start,
        kafka_conn_id=kafka_conn_id,
        poll_interval=poll_interval,
    )
    return Asset(name=uri, uri=uri, group="exactlyonce", watchers=[AssetWatcher(name=uri, trigger=trigger)])


def committed_ranges(asset: Asset, context: Mapping[str, Any]) -> list[CommittedRange]:
    """Return the ranges of a DAG run that the asset has scheduled: each once, in the order of their commits.

    These are the events that have scheduled the run and all later ones that Airflow has. It keeps events back that come
    while a run is being made, until the next event makes the next run; that run has them again, with the same keys. A
    run that was started by hand is about all events of the asset that Airflow still has.

    :param asset: what :func:`pipeline_asset` has returned; an inlet of the task
    :param context: the task's, with ``triggering_asset_events`` and ``inlet_events``
    """
    scheduled_by = context["triggering_asset_events"].get(asset, ())
    events = context["inlet_events"][asset]
    if scheduled_by:
        events = events.after(min(event.timestamp for event in scheduled_by).isoformat())
    payloads = [event.extra["payload"] for event in events if event.extra.get("from_trigger")]
    # On SQLite a new trigger gets the id of a deleted one, whose event Airflow may then take for one of this asset's.
    ranges = [CommittedRange.parse(payload) for payload in payloads if "key" in payload]
    return sorted({committed.key: committed for committed in ranges}.values(), key=lambda committed: committed.first)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check the URI of a pipeline's asset: ``exactlyonce://<connection>/<pipeline>``, and ``/hour`` or ``/day``.

    :raises ValueError: when it is none
    """
    parts = uri.path.strip("/").split("/")
    if not uri.netloc or not parts[0] or parts[1:] not in ([], ["hour"], ["day"]):
        raise ValueError(f"{uri.geturl()!r} is not exactlyonce://<connection>/<pipeline>, with /hour or /day behind it")
    return uri
