"""Every round is the whole matrix, and no case is lost on the way into a driver's life."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from airflow_provider_exactlyonce.failpoints import NAMES
from tests.crash_matrix.cases import AT_START, POINTS_WITH_TABLE, SHORT_TIMEOUT_SECONDS, Fault, cases, lives, worlds
from tests.crash_matrix.shapes import SHAPES

ROUND = len(SHAPES) * len(NAMES) * len(Fault)


def test_each_round_is_the_whole_matrix_and_a_seed_gives_the_same_again() -> None:
    first = list(islice(cases(5), 2 * ROUND))
    for start in (0, ROUND):
        cells = Counter((case.shape, case.point, case.fault) for case in first[start : start + ROUND])
        assert len(cells) == ROUND and set(cells.values()) == {1}
    assert first == list(islice(cases(5), 2 * ROUND))
    assert first != list(islice(cases(6), 2 * ROUND))


def test_every_case_has_one_place_in_a_life_that_suits_it() -> None:
    for seed in range(20):
        wanted = list(islice(cases(seed, POINTS_WITH_TABLE), 40))
        for world in worlds(wanted, 24):
            planned = lives(world)
            placed = [case for life in planned for case in life.cases]
            assert Counter(placed) == Counter(world)
            assert planned[-1].kill is None, "somebody has to see what the last kill left"
            for life in planned:
                assert life.start is None or life.start.point in AT_START
                assert all(case.point not in AT_START and case.fault is not Fault.DRIVER for case in life.middle)
                if any(case.fault is Fault.FREEZE for case in life.cases):
                    assert life.timeout_seconds == SHORT_TIMEOUT_SECONDS
                if life.start is not None and life.start.fault is Fault.DRIVER:
                    assert life.cases == [life.start], "it does not live longer"
        assert Counter(case for world in worlds(wanted, 24) for case in world) == Counter(wanted)
