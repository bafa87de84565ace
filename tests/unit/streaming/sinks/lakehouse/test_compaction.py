"""Which small files are written together: by size and partition, how much at once, and how often a row is written."""

from __future__ import annotations

import random

import pytest

from airflow_provider_exactlyonce.streaming.sinks.lakehouse.compaction import MOST_FILES, OwnFile, choose

TARGET = 1000


def files(*sizes: int, partition: str = "p") -> list[OwnFile]:
    return [
        OwnFile(name=f"{partition}/{number}", partition=partition, size=size, rows=size)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("given", "together"),
    [
        ((), []),
        ((5,), []),
        ((5, 5), [5, 5]),
        ((6, 5), []),
        ((3, 1, 3), [1, 3, 3]),
        ((10, 5, 5), [5, 5, 10]),
        ((11, 5, 5), [5, 5]),
        ((11, 5, 5, 20), [5, 5, 11, 20]),
        ((11, 5, 5, 22), [5, 5]),
        ((500, 500), [500, 500]),
        ((501, 501), []),
        ((400, 400, 400, 400), [400, 400]),
    ],
)
def test_a_file_is_written_again_with_as_much_of_smaller_ones(given: tuple[int, ...], together: list[int]) -> None:
    assert [[file.size for file in group] for group in choose(files(*given), TARGET)[0]] == [together][: len(together)]


def test_files_of_two_partitions_are_not_written_together() -> None:
    groups, is_more_left = choose([*files(5, 5, partition="a"), *files(5, 5, 5, partition="b")], TARGET)
    assert [{file.partition for file in group} for group in groups] == [{"b"}, {"a"}]
    assert not is_more_left


def test_one_compaction_is_as_large_as_one_file_and_the_rest_is_left() -> None:
    given = [file for name in "abc" for file in files(*[100] * 6, partition=name)]
    groups, is_more_left = choose(given, TARGET)
    assert (len(groups), is_more_left) == (1, True)
    many = [file for name in "abc" for file in files(*[1] * (MOST_FILES - 1), partition=name)]
    groups, is_more_left = choose(many, 10**6)
    assert (len(groups), is_more_left) == (1, True)
    groups, is_more_left = choose(files(*[1] * (2 * MOST_FILES)), 10**6)
    assert ([len(group) for group in groups], is_more_left) == ([MOST_FILES], True)


def test_after_any_number_of_batches_files_are_few_and_a_row_was_written_few_times() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    target, there, rewritten, committed = 2**20, list[OwnFile](), 0, 0
    for number in range(3000):
        size = draw.randint(500, 1500)
        committed += size
        there.append(OwnFile(name=str(number), partition="", size=size, rows=size))
        if number % 10 == 9:
            for group in choose(there, target)[0]:
                together = sum(file.size for file in group)
                rewritten += together
                there = [file for file in there if file not in group]
                there.append(OwnFile(name=f"{number}+", partition="", size=together, rows=together))
            assert len([file for file in there if file.size < target / 2]) <= 12, "each is larger than all smaller ones"
    assert rewritten <= 12 * committed, "a file is doubled at most so often"
    assert sum(file.size for file in there) == committed
