"""The Kafka topics that a pipeline's sink has written to, from commit to commit."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

import kafka.errors

from airflow_provider_exactlyonce.exceptions import BatchFailedError
from airflow_provider_exactlyonce.kafka.wire import Code
from airflow_provider_exactlyonce.ledger.topic_identity import KnownTopic, known_sinks

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.streaming.commit.run import Run
    from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink

log = logging.getLogger(__name__)


class WrittenTopics:
    """The topics of one running query's sink, as the ledger has them.

    :param definition: the Kafka sink as the user declared it, None when no sink is Kafka
    :param late_topic: where late rows go, None for nowhere
    """

    def __init__(self, run: Run, definition: KafkaSink | None, late_topic: str | None) -> None:
        self._run: Final = run
        self._definition: Final = definition
        self._declared: Final = {*(definition.topics if definition else ()), *([late_topic] if late_topic else ())}
        self._deleted_topics: dict[str, KnownTopic] | None = None  # looked for once a run: there may be many

    @property
    def known(self) -> dict[str, KnownTopic]:
        """The topics that were written to and that the job may write to again.

        Forgotten are those that the job does not declare any more, and those that only rows name and that were gone at
        the run's first batch.

        :raises BatchFailedError: when Kafka does not answer
        """
        definition = self._definition
        if definition is None:
            return {}
        known = known_sinks(self._run.newest_own)
        if definition.topic_column is None:
            return {name: topic for name, topic in known.items() if name in self._declared}
        if self._deleted_topics is None:
            self._deleted_topics = self._look_for(
                {name: topic for name, topic in known.items() if name not in self._declared}
            )
        return {name: topic for name, topic in known.items() if self._deleted_topics.get(name) != topic}

    def _look_for(self, known: dict[str, KnownTopic]) -> dict[str, KnownTopic]:
        """Return which of the topics are gone."""
        try:
            described = self._run.client.admin.describe_topics(list(known)) if known else []
        except kafka.errors.KafkaError as error:
            raise BatchFailedError(f"topics that rows have named: {type(error).__name__}: {error}") from error
        names = [str(topic["name"]) for topic in described if topic["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION]
        for name in names:
            log.warning(
                "topic %s, which commit %d wrote to, is gone, and its records with it; if it is made again, it counts "
                "as new",
                name,
                known[name].commit,
            )
        return {name: known[name] for name in names}

    def earlier(self, written: Collection[str]) -> dict[str, tuple[str, int]]:
        """Return the known topics that a commit has not written to, for its record.

        :param written: the topics that it has written to
        """
        return {name: (topic.topic_id, topic.commit) for name, topic in self.known.items() if name not in written}

    def former(self, written: Collection[str]) -> dict[str, str]:
        """Return {topic: id} of those that earlier commits wrote to and the job does not name any more.

        A gate asks whether they can be read. Those that rows named and that are gone are left out, or there would be
        ever more of them; what the job once declared stays.

        :param written: those that the commit has written to
        """
        newest = self._run.newest_own
        if newest is None:
            return {}
        topics = {**newest.former_sink_topics, **{name: topic.topic_id for name, topic in known_sinks(newest).items()}}
        named = {*written, *self.known, *(self._deleted_topics or ())}
        return {name: topic_id for name, topic_id in topics.items() if name not in named}

    def told_since(self, commit: int) -> int:
        """Return the commit from which on the records name every topic that was written to.

        :param commit: the number of the next commit
        """
        newest = self._run.newest_own
        return newest.sink_topics_since or commit if newest is not None else commit
