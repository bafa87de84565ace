from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from airflow_provider_exactlyonce.ledger.records import CommitRecord, Record, SinkRange
from demo import judge
from demo.history import SOURCE_TOPIC, History, Update
from tests.unit.demo import histories


def figures_of(history: History) -> judge.Figures:
    return judge.figures(history, histories.events(), histories.purchases())


def ledger_problems(records: list[Record] | None = None, shown: list[Update] | None = None) -> list[str]:
    return judge.ledger_problems(
        histories.ledger() if records is None else records,
        {0: len(histories.events())},
        histories.events(),
        histories.updates() if shown is None else shown,
        histories.SINK,
    )


def test_a_right_history_has_no_problem_and_its_figures_add_up() -> None:
    figures = figures_of(histories.history())

    assert judge.problems(figures, kills=2, restarts=2) == []
    assert judge.source_problems(histories.events(), histories.purchases()) == []
    assert ledger_problems() == []
    assert (figures.records_in, figures.batches, figures.kills, figures.restarts) == (24, 8, 2, 2)
    assert (figures.rows_due, figures.rows_visible, figures.rows_written) == (24, 24, 26)
    assert figures.money_in == figures.money_out == sum(range(2, 26))
    assert figures.seconds_to_recover == (8.0, 9.0)


def test_throughput_leaves_out_batches_in_which_a_driver_died() -> None:
    history = histories.history()
    died_inside = replace(history.kills[0], at=histories.EPOCH + 38)

    assert figures_of(history).records_per_second == pytest.approx(24 / (8 * 3))
    slow = replace(history.batches[3], started=histories.EPOCH + 31)
    batches = [*history.batches[:3], slow, *history.batches[4:]]
    spoilt = replace(history, batches=batches, kills=[died_inside, history.kills[1]])
    assert figures_of(spoilt).records_per_second == pytest.approx(21 / (7 * 3))


def test_a_lost_record_is_counted_and_flagged() -> None:
    figures = figures_of(histories.history(histories.updates()[:-1]))

    assert (figures.records_lost, figures.rows_missing, figures.customers_off) == (1, 1, 1)
    assert judge.problems(figures, kills=2, restarts=2) == [
        "purchases lost: 1, must be 0",
        "rows missing: 1, must be 0",
        "customers whose newest total differs from the file: 1, must be 0",
        "money out is 299, money in 324",
    ]


def test_a_missing_row_is_flagged_although_a_later_total_covers_it() -> None:
    shown = histories.updates()
    del shown[4]

    figures = figures_of(histories.history(shown))

    assert (figures.records_lost, figures.rows_missing) == (0, 1)
    assert judge.problems(figures, kills=2, restarts=2) == ["rows missing: 1, must be 0"]


def test_a_doubled_pair_is_counted_and_flagged_with_its_batch() -> None:
    shown = histories.updates()
    again = [replace(update, offset=update.offset + 100) for update in shown[9:11]]

    figures = figures_of(histories.history([*shown, *again, again[0]]))

    assert (figures.rows_doubled, figures.pairs_doubled, figures.doubled_in) == (3, 2, {3: 3})
    assert "rows doubled: 3, must be 0" in judge.problems(figures, kills=2, restarts=2)


def test_a_wrong_sum_in_the_middle_is_flagged() -> None:
    figures = figures_of(histories.history(histories.changed(7, paid=Decimal("0.01"))))

    assert judge.problems(figures, kills=2, restarts=2) == ["rows wrong: 1, must be 0"]


def test_a_wrong_newest_sum_shows_as_money_and_as_a_customer() -> None:
    last = histories.updates()[-1]

    figures = figures_of(histories.history(histories.changed(-1, paid=last.paid + Decimal("0.01"))))

    assert judge.problems(figures, kills=2, restarts=2) == [
        "rows wrong: 1, must be 0",
        "customers whose newest total differs from the file: 1, must be 0",
        "money out is 324.01, money in 324",
    ]


def test_a_count_that_no_batch_ends_with_is_a_wrong_row() -> None:
    figures = figures_of(histories.history(histories.changed(7, purchases=99)))

    assert (figures.rows_wrong, figures.rows_missing) == (1, 1)


def test_an_open_transaction_is_flagged() -> None:
    history = replace(histories.history(), sink_ends={histories.SINK: {0: (29, 32), 1: (5, 5)}})

    assert judge.problems(figures_of(history), kills=2, restarts=2) == [
        "partitions with an open transaction: 1, must be 0"
    ]


def test_a_kill_that_did_not_happen_or_was_not_recovered_from_is_flagged() -> None:
    history = histories.history()
    never_came_back = replace(history.kills[1], at=histories.EPOCH + 1000)

    without = judge.problems(figures_of(replace(history, kills=history.kills[:1])), kills=2, restarts=2)
    stuck = judge.problems(figures_of(replace(history, kills=[history.kills[0], never_came_back])), kills=2, restarts=2)

    assert without == ["kills: 1, must be 2"]
    assert stuck == ["kills without a commit after them: 1, must be 0"]


def test_a_restart_that_nobody_caused_is_flagged() -> None:
    history = histories.history()

    figures = figures_of(replace(history, starts=[*history.starts, histories.EPOCH + 90]))

    assert judge.problems(figures, kills=2, restarts=2) == ["restarts of the driver: 3, must be 2"]


def test_too_few_batches_are_flagged() -> None:
    purchases, events, shown = histories.purchases()[:21], histories.events()[:21], histories.updates()[:21]
    history = replace(histories.history(shown), batches=histories.history().batches[:7])

    figures = judge.figures(history, events, purchases)

    assert judge.problems(figures, kills=2, restarts=2) == [
        "7 batches, fewer than the 8 over which the kills are spread"
    ]


def test_a_source_that_differs_from_the_file_is_told_line_by_line() -> None:
    events = histories.events()
    events[3] = replace(events[3], dollars=Decimal("9.99"))
    events[5] = replace(events[5], event_id=2)

    assert judge.source_problems(events, histories.purchases()) == [
        "the source lacks lines: 7 (1 in all)",
        "the source repeats lines: 2 (1 in all)",
        "the source differs from the file at lines: 2, 5 (2 in all)",
    ]


def test_a_gap_in_the_ledger_is_flagged_by_number_source_and_rows() -> None:
    without = [record for record in histories.ledger() if getattr(record, "commit", 0) != 5]

    problems = ledger_problems(without)

    assert problems[:2] == [
        "ledger: commit 5 should follow, commit 6 does",
        "source partition 0: commit 4 ends at 12, commit 6 starts at 15",
    ]
    assert "visible rows that no commit has on record, partition:offset: 0:16, 0:17, 0:18 (3 in all)" in problems


def test_a_repeated_commit_is_flagged() -> None:
    assert "ledger: commit 9 should follow, commit 8 does" in ledger_problems(
        [*histories.ledger(), histories.commit(8)]
    )


def test_a_missing_run_is_flagged_and_a_second_claim_of_the_same_run_is_not() -> None:
    records = histories.ledger()

    assert ledger_problems([records[0], *records]) == []
    assert ledger_problems([record for record in records if getattr(record, "token", "") != "2"]) == [
        "ledger: run 2 should follow, run 3 does"
    ]


def test_source_ranges_that_overlap_or_end_early_are_flagged() -> None:
    overlap = [
        replace(record, source={SOURCE_TOPIC: {0: (11, 15)}})
        if isinstance(record, CommitRecord) and record.commit == 5
        else record
        for record in histories.ledger()
    ]

    assert "source partition 0: commit 4 ends at 12, commit 5 starts at 11" in ledger_problems(overlap)
    assert "source partition 0: commit 7 ends at 21, the end starts at 24" in ledger_problems(histories.ledger()[:-1])


def test_a_row_in_the_range_of_another_commit_is_flagged() -> None:
    shown = histories.updates()
    shown[3], shown[8] = (replace(shown[3], offset=shown[8].offset), replace(shown[8], offset=shown[3].offset))

    assert ledger_problems(shown=shown) == [
        "commit 2: its 3 rows are not the 3 it owes",
        "commit 3: its 3 rows are not the 3 it owes",
    ]


def test_a_record_whose_row_count_is_not_what_readers_see_is_flagged() -> None:
    records = histories.ledger()
    first = records[1]
    assert isinstance(first, CommitRecord)
    more = {histories.SINK: {0: SinkRange(first=0, last=2, rows=4, digest=0)}}

    assert ledger_problems([records[0], replace(first, rows=4, sink=more), *records[2:]]) == [
        "commit 1: 4 rows on record, 3 visible"
    ]
