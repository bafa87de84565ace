"""Commands to a driver: one document a kind, bound to the driver it is meant for."""

from __future__ import annotations

from airflow_provider_exactlyonce.control import documents
from airflow_provider_exactlyonce.control.home import Home


def request_stop(home: Home, token: str, *, reason: str) -> None:
    """Ask the driver with this start token to stop before its next batch. May be repeated."""
    documents.write(home.commands / "stop.json", {"token": token, "reason": reason})


def stop_requested(home: Home, token: str) -> str | None:
    """Return the reason when a stop was asked of the driver with this start token."""
    body = documents.read(home.commands / "stop.json")
    return str(body["reason"]) if body and body["token"] == token else None
