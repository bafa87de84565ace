"""From samples to figures: the steady state, and what a kill costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engines.watch import Sample
from benchmarks.engines.workloads import PARTITIONS

#: The steady state is between the moments at which these shares of the output can be read: start and end are left out.
#: They lie between two batches, whatever an engine's batch brings into view.
FROM_SHARE, TO_SHARE = 0.35, 0.85


@dataclass(frozen=True, kw_only=True)
class Steady:
    """The steady state.

    :param seconds: between its two moments
    :param rows_per_second: of the input
    :param cpu_seconds: of the engine's processes for a million rows of the input
    :param broker_cpu_seconds: the broker's for the same
    :param other_cores: how many processors were busy with what belongs to none of them
    """

    seconds: float
    rows_per_second: float
    cpu_seconds: float
    broker_cpu_seconds: float
    other_cores: float


@dataclass(frozen=True, kw_only=True)
class Outage:
    """What readers see of a kill.

    :param next_record_seconds: from the kill to the next record that can be read
    :param held_seconds: the longest time that ``read_committed`` readers stood before records that were there already
    :param usually_held_seconds: the same before the kill
    """

    next_record_seconds: float
    held_seconds: float
    usually_held_seconds: float


def steady(samples: Sequence[Sample], visible: Sequence[int], rows: int) -> Steady:
    """Return the figures between two moments; the share of the output stands for that of the input.

    :param visible: how many records could be read at each sample
    :param rows: of the whole input
    """
    total = visible[-1]
    first, last = steady_samples(visible)
    begin, end = samples[first], samples[last]
    seconds = end.at - begin.at
    millions = rows * (visible[last] - visible[first]) / total / 1e6
    engine, broker = end.engine - begin.engine, end.broker - begin.broker
    others = end.machine - begin.machine - engine - broker - (end.bench - begin.bench)
    return Steady(
        seconds=seconds,
        rows_per_second=millions * 1e6 / seconds,
        cpu_seconds=engine / millions,
        broker_cpu_seconds=broker / millions,
        other_cores=others / seconds,
    )


def steady_samples(visible: Sequence[int]) -> tuple[int, int]:
    """Return the numbers of the samples at the two moments of the steady state."""
    first, last = (
        next(index for index, count in enumerate(visible) if count >= share * visible[-1])
        for share in (FROM_SHARE, TO_SHARE)
    )
    return first, last


def outage(samples: Sequence[Sample], visible: Sequence[int], killed: float) -> Outage:
    """Return what readers saw of a kill.

    :param killed: when the engine's processes were gone, by the monotonic clock
    """
    samples_before = sum(sample.at <= killed for sample in samples)
    # What was sent before is there at the first look after it.
    next_visible = next(
        sample.at for sample, count in zip(samples, visible, strict=True) if count > visible[samples_before]
    )
    held = _held(samples)
    return Outage(
        next_record_seconds=next_visible - killed,
        held_seconds=max(held[samples_before:]),
        usually_held_seconds=max(held[:samples_before]),
    )


def _held(samples: Sequence[Sample]) -> list[float]:
    """Return for each sample how long a partition's readers have stood before records that are there."""
    held = [0.0] * len(samples)
    for partition in range(PARTITIONS):
        since = samples[0]
        for number, sample in enumerate(samples):
            if not since.stable[partition] == sample.stable[partition] < sample.high[partition]:
                since = sample
            held[number] = max(held[number], sample.at - since.at)
    return held
