"""Keeps aiohttp from sending a request again when the connection is closed before the answer.

It does so with each PUT and DELETE, which repeated change nothing; but one with a condition is refused the second time,
because of the first. Only a private switch keeps it from that; ``tests/integration/storage/test_faults.py`` is its
contract test.
"""

from __future__ import annotations

from typing import Any

from aiobotocore.httpsession import AIOHTTPSession
from typing_extensions import override


class SendingOnce(AIOHTTPSession):  # type: ignore[misc]  # its package has no types
    """Sends each request once."""

    @override
    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False
        return session
