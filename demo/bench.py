"""The purchases in the source topic, and the verdict on what the main job has made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.ledger.records import Record
from demo import judge, main_job, purchases, report, topics
from demo.console import Console
from demo.history import SOURCE_TOPIC, Event, History, read_events

_PARTITIONS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the jobs of a demo share.

    :param config: Kafka client configuration
    :param events: the source topic's records, as read back from it
    """

    console: Console
    folder: Path
    config: Mapping[str, Any]
    purchases: Sequence[purchases.Purchase]
    events: Sequence[Event]

    def progress(self, done: int, text: str) -> None:
        """Show how many of the records are through."""
        self.console.progress(done, len(self.events), text)

    def account(self, history: History, records: Sequence[Record], *, kills: int, restarts: int) -> report.Account:
        """Judge a run of the main job.

        :param records: the ledger's
        :param kills: how many the demo meant to make
        :param restarts: of the driver, as many as there have to be
        """
        figures = judge.figures(history, self.events, self.purchases)
        ends = topics.Ends(self.config, SOURCE_TOPIC).stable_and_high()
        source_ends = {partition: high for partition, (_, high) in ends.items()}
        problems = [
            *judge.problems(figures, kills=kills, restarts=restarts),
            *judge.source_problems(self.events, self.purchases),
            *judge.ledger_problems(records, source_ends, self.events, history.updates, main_job.TOPIC),
        ]
        return report.Account(name=report.OURS, history=history, figures=figures, problems=problems)


def feed(console: Console, folder: Path, config: Mapping[str, Any], sinks: Iterable[str]) -> Bench:
    """Make the topics, and write the purchases to the source.

    :param sinks: the jobs' topics
    """
    topics.create(config, [SOURCE_TOPIC, *sinks], _PARTITIONS)
    bought = purchases.read()
    topics.feed(config, SOURCE_TOPIC, purchases.in_order_of_time(bought))
    events = read_events(topics.read(config, SOURCE_TOPIC))
    console.say(f"{len(events):,} purchases are in {SOURCE_TOPIC}, {_PARTITIONS} partitions, keyed by customer")
    return Bench(console=console, folder=folder, config=config, purchases=bought, events=events)
