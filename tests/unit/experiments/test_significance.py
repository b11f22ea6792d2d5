"""The one rule: what agrees, what differs, what is too close to tell, by kind of statement; and that every paper follows it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dovetail.errors import ConfigError
from experiments import overview
from experiments.papers import PAPERS, Paper, best_runs
from experiments.report import (
    AGREES,
    DIFFERS,
    UNDECIDED,
    UNTESTED,
    VERDICTS,
    Claim,
    Headline,
    run_of,
    statements,
    untested,
)
from experiments.significance import ABOVE, Numbers, always, example, happens, inside, interval, share, within


def draws(below: int, above: int) -> Numbers:
    return np.array([0.9] * below + [1.1] * above)


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ([draws(0, 10)], AGREES),
        ([draws(0, 10), draws(3, 7)], UNDECIDED),
        ([draws(10, 0), draws(3, 7)], DIFFERS),
        ([draws(0, 10), draws(10, 0)], DIFFERS),
        ([draws(1, 4)], UNDECIDED),  # fewer than six draws: the interval is all of them
    ],
)
def test_a_median_agrees_by_its_interval_in_every_setting(cells: list[Numbers], verdict: str) -> None:
    assert within("", "", cells, ABOVE, "", "").verdict == verdict


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ([draws(0, 10)] * 4, AGREES),
        ([draws(0, 10)] * 3 + [draws(2, 8)], AGREES),  # 95 % of the draws, and no case is against it
        ([draws(0, 10)] * 2 + [draws(2, 8)], UNDECIDED),  # 93 %
        ([draws(0, 10)] * 40 + [draws(10, 0)], DIFFERS),  # 98 %, but one case is against it
        ([draws(0, 10)] * 40 + [draws(9, 1)], DIFFERS),
    ],
)
def test_all_cases_need_nearly_all_draws_and_no_case_against(cells: list[Numbers], verdict: str) -> None:
    claim = always("", "", cells, ABOVE, "", "")
    assert (claim.verdict, claim.kind) == (verdict, "all cases")


def test_a_case_without_noise_contradicts_by_itself() -> None:
    assert always("", "", draws(0, 1000), ABOVE, "", "").verdict == AGREES
    claim = always("", "", draws(1, 999), ABOVE, "", "", computed=True)
    assert (claim.verdict, claim.about) == (DIFFERS, "all cases, computed")
    assert claim.measured == "0.900 to 1.100; so in 99.9% of 1,000 cases"


def test_what_can_happen_needs_one_case() -> None:
    assert happens("", "", draws(999, 1), ABOVE, "", "").verdict == AGREES
    assert happens("", "", draws(1000, 0), ABOVE, "", "").verdict == DIFFERS


def test_examples_and_shares() -> None:
    assert example("", "", "5", True, "").verdict == AGREES
    assert example("", "", "6", False, "").verdict == DIFFERS
    assert inside("", "", [share([True] * 60 + [False] * 40)], (0.3, 1), "", "").verdict == AGREES
    assert inside("", "", [share([True] * 60 + [False] * 40)], (0.55, 1), "", "").verdict == UNDECIDED


def test_an_interval_of_many_draws_is_narrow_and_fast() -> None:
    assert interval(np.arange(10_000.0)) == (4999.5, 4901, 5098)


def test_a_claim_has_one_of_four_verdicts() -> None:
    claims = [Claim("here", "so", "1", holds, "why", "median") for holds in (True, False, None)]
    claims.append(untested("here", "so", "nothing", "why"))
    assert [claim.verdict for claim in claims] == list(VERDICTS) == [AGREES, DIFFERS, UNDECIDED, UNTESTED]
    assert statements(claims, "the paper")[-3:] == [
        "Where we differ:\n\n- here, “so”: why.",
        "What is too close to tell:\n\n- here, “so”: why.",
        "What cannot be tested here:\n\n- here, “so”: why.",
    ]


def test_who_is_right_follows_from_verdicts() -> None:
    headlines = [Headline("here", "so", short, "it is so") for short in ("one", "two", "three")]
    agrees, differs = (Claim("here", "so", "1", holds, "it is not", "median") for holds in (True, False))
    unsure = Claim("here", "so", "1", None, "too few", "median")
    known = list(zip(headlines, (differs, agrees, unsure), strict=True))
    assert overview.who_is_right(known) == (
        "the paper on two (it is so); not the paper on one (it is not); nobody can tell on three (too few)"
    )
    assert overview.who_is_right(list(zip(headlines, (agrees, agrees, agrees), strict=True))) == (
        "the paper on one (it is so) and on two (it is so) and on three (it is so)"
    )


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_has_three_headlines_and_a_picture(name: str) -> None:
    paper = Paper(name)
    assert len(paper.headlines) == 3
    assert paper.picture.startswith(f"{name}-")


def test_the_full_run_of_a_paper_counts_before_the_latest_and_the_small_one(tmp_path: Path) -> None:
    made = ("golab-quick", "golab-draws=10", "golab-draws=3,units=50", "kwon-quick", "raghavan-full", "raghavan-runs=5")
    for number, directory in enumerate(made):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "report.md").touch()
        os.utime(tmp_path / directory, (number, number))
    (tmp_path / "kwon-full").mkdir()  # not complete
    assert best_runs(tmp_path) == [
        Paper("golab", less=(("draws", 3), ("units", 50))),
        Paper("kwon", quick=True),
        Paper("raghavan"),
    ]
    assert Paper("golab", less=(("draws", 3),)).grid.draws == 3


def test_a_paper_without_a_run_is_named() -> None:
    text = " ".join(overview.page({}).split())
    assert "**Not judged again yet:** [alrahmani](alrahmani.md) and [golab](golab.md) and " in text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("draws", "--grid is 'draws'"),
        ("taus=4", "the number is 'taus'; allowed: 'draws'"),
        ("draws=4;units=5", "--grid is"),
    ],
)
def test_numbers_of_a_grid_are_checked(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Paper.fields("golab", text)


def test_results_name_their_run() -> None:
    assert run_of(Paper("golab").grid) == "the full grid"
    assert run_of(Paper("golab", less=(("draws", 3),)).grid) == "a smaller grid (draws 3 for 10)"
