"""The port on which a driver's sequencers listen: opened once, held until the driver ends.

Every batch attempt has a sequencer of its own. If each opened the port itself, a fixed one could be lost to another
process between two attempts, and one that is taken would be noticed only by the first batch.
"""

from __future__ import annotations

import errno
import secrets
import socket
from typing import Final, Self

from airflow_provider_exactlyonce.exceptions import RefusedError, SequencerPortError
from airflow_provider_exactlyonce.streaming.settings import (
    SEQUENCER_BIND_ADDRESS,
    SEQUENCER_HOST,
    SEQUENCER_PORT,
    SequencerEndpoint,
)

_BACKLOG: Final = 1024  # a stage's tasks may all connect at once, and nobody accepts between two attempts


class SequencerListener:
    """A listening socket; a context manager.

    :param endpoint: where to listen
    :raises SequencerPortError: when the port is in use
    :raises RefusedError: when the driver's host has no such address
    """

    def __init__(self, endpoint: SequencerEndpoint) -> None:
        try:
            self.socket: Final = _listen(endpoint)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise SequencerPortError(
                    f"{SEQUENCER_PORT} is {endpoint.port}, and that port of {endpoint.bind_address} is in use on the "
                    "driver's host; give every driver a port of its own, or 0 for any free one"
                ) from error
            raise RefusedError(
                f"the sequencer can't listen on {endpoint.bind_address}:{endpoint.port}: {error}; set "
                f"{SEQUENCER_BIND_ADDRESS} to an address of the driver's host (0.0.0.0: all of them), {SEQUENCER_HOST} "
                f"to the one that executors connect to, and {SEQUENCER_PORT} to a port that it may use"
            ) from error
        self.host: Final = endpoint.host
        self.port: Final[int] = self.socket.getsockname()[1]
        #: of which the secrets of the batch attempts are made
        self.key: Final = secrets.token_bytes(32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def _listen(endpoint: SequencerEndpoint) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        endpoint.bind_address, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # It reuses the port of connections that have just ended, never one with a listener.
    listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener
