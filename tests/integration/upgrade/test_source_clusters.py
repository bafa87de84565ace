"""Upgrades of a pipeline whose source is on another cluster than its sink, under load, with topics of the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from tests.integration.streaming.harness import World
from tests.integration.streaming.source_topics import Topics
from tests.integration.upgrade.harness import Story
from tests.shared_jvm import SharedJvm


@pytest.fixture
def story(
    tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str], shared_jvm: SharedJvm
) -> Iterator[Story]:
    """Give a pipeline that has never run; the sink's cluster has a topic of its source's name, which nobody reads."""
    with EmbeddedBroker(tmp_path / "elsewhere", heap_megabytes=256) as broker:
        topics = Topics({"bootstrap.servers": broker.bootstrap_servers})
        [source] = topics.make("events")
        decoys = Topics(kafka_config, topics.prefix)
        decoys.make("events")
        decoys.send(500, "events")
        sink, home = make_topic(partitions=2), tmp_path / "home"
        world = World(kafka_config, f"p-{source}", source, sink, home, jvm=shared_jvm, elsewhere=topics.config)
        made = Story(world, tmp_path)
        yield made
        made.end()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_upgrade_with_a_shadow_run_and_its_way_back_read_the_sources_cluster(story: Story) -> None:
    with story.load():
        story.start()
        moved = story.upgrade("elsewhere", "--shadow-commits", "0", code=64)
        assert f"source topic {story.world.source} is read from this cluster now" in moved.err
        assert len(story.world.ledger()[1]) == 1, "nothing was touched"

        answer = story.upgrade("shouts", "--shadow-commits", "3", "--stable-after", "2").body
        assert (answer["outcome"], answer["changed"], story.in_use()) == ("done", True, "shouts")
        assert answer["shadow"]["source_records"] > 0
        back = story.run("rollback")
        assert (back.body["outcome"], story.in_use()) == ("rolled-back", "first")
    story.drain()
    story.run("stop")
    assert story.check() == ["first", "shouts", "first"]
    connections = {of for claim in story.world.ledger()[1] for of in claim.source_clusters}
    assert connections == {story.world.source}
