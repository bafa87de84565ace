"""A recorded ``offsets/N``, made to fit another lineage."""

from __future__ import annotations

import json


def adapted(text: str, *, confs_of: str | None, watermark: int | None) -> str:
    """Return an offset log entry with the lineage's own configuration.

    The configuration says how state is stored, the number of state partitions too: with that of before a rescale Spark
    would refuse the state.

    :param text: the recorded entry
    :param confs_of: the lineage's newest entry, None when it has none
    :param watermark: the batch's watermark, milliseconds since the epoch; None keeps the recorded one
    """
    version, header, sources = text.split("\n", 2)
    metadata = json.loads(header)
    if confs_of is not None:
        metadata["conf"] = json.loads(confs_of.split("\n", 2)[1])["conf"]
    if watermark is not None:
        metadata["batchWatermarkMs"] = watermark
    return "\n".join([version, json.dumps(metadata, separators=(",", ":")), sources])
