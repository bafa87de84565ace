from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.ledger.listing import among

MANY = [f"p{number:02}" for number in range(30)]
TEN = ", ".join(MANY[:10])


@pytest.mark.parametrize(
    ("there", "misspelt", "said"),
    [
        ([], "shop", "No pipeline has ever been started on this cluster: check bootstrap.servers"),
        (["shop-totals"], "Shop_Totals", "Is it shop-totals?"),
        (["a", "shop-totals", "z"], "shop-total", "Is it shop-totals? There are also: a, z"),
        (["a", "z"], "shop-totals", "There are: a, z"),
        (MANY, "shop-totals", f"There are: {TEN} and 20 more (exactlyonce list)"),
    ],
)
def test_what_is_like_the_name_comes_first_and_the_list_stays_short(there: list[str], misspelt: str, said: str) -> None:
    assert among(there, misspelt) == said
