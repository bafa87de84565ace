"""The one adapter for the sockets through which keyed functions reach their state: Spark leaves one open a task.

A thread of the JVM answers what a task's function asks. At the end of the task Spark interrupts it, and Java closes the
socket that an interrupted thread reads from. But before, PySpark reports that the function is done: the thread ends,
and nobody closes the socket. So that report is suppressed, and the worker's end stays open until the task ends.

Private to Spark 4.2. If its contract fails with another Spark, see whether Spark closes the sockets by itself, and
remove this module: ``tests/integration/streaming/spark/test_state_sockets.py``.
"""

from __future__ import annotations

from collections import deque
from socket import socket
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorHandleState

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

#: A worker begins another task while the operators behind a function still work in the one before; hardly so many.
_KEPT: Final = 64
_sockets: Final[deque[socket]] = deque(maxlen=_KEPT)


def leave_open(handle: StatefulProcessorHandle) -> None:
    """Leave a function's socket open to the end of its task; call it from Spark's last call, in a worker.

    :param handle: with which Spark has initialised the function
    """
    client: Any = handle._statefulProcessorApiClient
    set_state = client.set_handle_state

    def set_other_than_closed(state: StatefulProcessorHandleState) -> None:
        if state != StatefulProcessorHandleState.CLOSED:
            set_state(state)

    client.set_handle_state = set_other_than_closed
    _sockets.append(client._client_socket)
