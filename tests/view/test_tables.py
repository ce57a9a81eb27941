"""Tables on a console: no wider than it is, numbers whole while that can be, and the words of the answers."""

from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvroof.catalog.profiles import hardware_names, load_hardware
from kvroof.cli.output import print_view
from kvroof.search.outcome import OperatingPoint
from kvroof.serving.pools.break_even import Condition
from kvroof.serving.pools.verdict import Disaggregation, Side
from kvroof.view.catalog import machines_view
from kvroof.view.operating_point import _rows
from kvroof.view.pools import pools_view
from kvroof.view.tables import Table, copied, notes

from .conftest import WICKED


def printed(parts, width):
    """Return the lines that a console of some width shows."""
    console = Console(file=StringIO(), width=width, highlight=False)
    for part in parts:
        console.print(part)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
cells = st.lists(words, min_size=1, max_size=4).map(" ".join)


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(
            st.lists(cells, min_size=n, max_size=n),
            st.lists(st.lists(cells, min_size=n, max_size=n), max_size=4),
            st.integers(0, n),
        )
    ),
    st.integers(80, 160),
)
def test_a_table_is_no_wider_than_its_console_and_keeps_every_character(parts, width):
    columns, rows, left = parts
    lines = printed([Table("title", columns, rows, left)], width)
    assert max(map(len, lines)) <= width
    shown = "".join("".join(lines[1:]).split())
    for character in set("".join("".join(row) for row in rows).replace(" ", "")):
        assert shown.count(character) >= sum(cell.count(character) for row in rows for cell in row)


def test_a_number_is_whole_where_words_can_give_way():
    rows = [("a name of several words that goes on " * 3, "1,234,567 tokens/s", "8.15 ms")]
    lines = printed([Table("t", ("name", "rate of all", "time"), rows)], 60)
    assert sum("1,234,567 tokens/s" in line and "8.15 ms" in line for line in lines) == 1


def test_a_cell_is_never_read_as_markup():
    lines = printed([Table("[bold]t[/]", ("[red]a",), [("[link=x]y[/link]",)]), notes("[b]", [WICKED])], 100)
    for text in ("[bold]t[/]", "[red]a", "[link=x]y[/link]", "[b]", WICKED):
        assert any(text in line for line in lines)


def test_a_note_that_is_wrapped_stays_under_its_first_word():
    lines = printed([notes("Assumptions", ["word " * 30])], 60)
    assert lines[1].startswith("  - word")
    assert all(line.startswith("    word") for line in lines[2:-1])


def test_every_machine_stands_on_one_line_of_eighty_characters():
    machines = [load_hardware(name) for name in hardware_names()]
    lines = printed(machines_view(machines), 80)
    for machine in machines:
        (line,) = [line for line in lines if line.split()[:1] == [machine.name] and machine.vendor in line]
        assert f"{machine.capacity_bytes / 2**30:.2f}" in line
        assert f"{machine.hbm_bytes_per_s / 1e12:.4g}" in line.split()
    assert not any(word in lines[2] for word in ("bandwid", "disagr"))


SIDE = Side(
    layout="2 x h100-sxm tp1, chunked",
    devices=2,
    goodput_rps=25.0,
    goodput_rps_per_device=12.5,
    tokens_per_s_per_device=3200.0,
    rate_rps=20.0,
    ttft_s=0.121,
    tpot_s=0.023,
    keeps_limits=True,
)
FULL = replace(
    SIDE,
    goodput_rps=23.9,
    ttft_s=None,
    tpot_s=None,
    keeps_limits=False,
    no_steady_state="no steady state: prefill is asked for 105% of what it can do",
)
TIED = Disaggregation(
    aggregated=SIDE,
    disaggregated=FULL,
    by_chip={},
    kv_bytes_per_request=None,
    kv_transfer_s=None,
    kv_seen_s=None,
    verdict="tie",
    log_ratio=-0.02,
    log_error=1.06,
    break_even=(Condition(what="rate", value=23.9, now=20.0, unit="req/s", above=False, better="either"),),
    calibrations={},
    assumptions=("one",),
)


def test_a_long_reason_stands_below_the_table_once():
    lines = printed(pools_view("m", TIED, (2.0, 0.05, 90.0)), 80)
    assert lines.count("  - two pools: no steady state: prefill is asked for 105% of what it can do") == 1
    assert max(map(len, lines)) <= 80


def test_the_margin_is_a_count_and_its_error_a_range_of_factors():
    said = " ".join(printed(pools_view("m", TIED, (2.0, 0.05, 90.0)), 300)[0].split())
    assert said == (
        "TIE splitting serves 2% fewer requests per device; 0.34 to 2.83 times as many"
        " within the model's error (one sigma: about two in three)"
    )


@pytest.mark.parametrize(
    ("served", "said"),
    [
        ("either", "YES  either serves 20 req/s on 2 devices"),
        ("aggregate", "YES  only one pool serves 20 req/s on 2 devices; two pools at most 23.9"),
        ("neither", "NO  neither way serves 20 req/s on 2 devices (at most 25)"),
    ],
)
def test_whether_a_rate_is_served_stands_before_what_is_served_at_most(served, said):
    keeps = {"either": (True, True), "aggregate": (True, False), "neither": (False, False)}[served]
    one, two = (replace(side, keeps_limits=kept) for side, kept in zip((SIDE, FULL), keeps, strict=True))
    answer = replace(TIED, served_by=served, aggregated=one, disaggregated=two)
    lines = printed(pools_view("m", answer, (2.0, 0.05, 90.0)), 300)
    assert lines[0] == said
    assert lines[1].startswith("At most: tie; splitting serves 2% fewer requests per device")


def test_a_line_to_be_copied_is_not_broken(capsys):
    print_view(copied("To start it", ["vllm serve m " + "--flag 1 " * 40]))
    assert capsys.readouterr().out.splitlines()[1] == ("vllm serve m " + "--flag 1 " * 40).rstrip()


@pytest.mark.parametrize(
    ("rate", "said"), [(20.0, "Times at 20 req/s"), (None, "Times at the goodput of each")]
)
def test_times_say_at_which_rate_they_are(rate, said):
    sides = [side if rate else replace(side, rate_rps=side.goodput_rps) for side in (SIDE, FULL)]
    answer = replace(TIED, aggregated=sides[0], disaggregated=sides[1])
    assert said in printed(pools_view("m", answer, (2.0, 0.05, 90.0)), 80)


def test_requests_in_flight_are_those_of_all_replicas_and_of_each():
    point = OperatingPoint(
        model="m", hw="h", tp=1, pp=1, ep=1, dp=1, replicas=5, devices=5, batch=187, isl=1.0, osl=1.0,
        chunk=None, kv_dtype="bf16", weights_dtype="bf16", tokens_per_s=1.0, tokens_per_s_per_device=1.0,
        requests_per_s=1.0, ttft_s=1.0, tpot_s=1.0, e2e_s=1.0, cost_per_mtok=None, joules_per_token=None,
        calibration=None,
    )  # fmt: skip
    assert ("in flight, all replicas", "187 (37 each)") in _rows(point)
    assert ("in flight", "187") in _rows(replace(point, replicas=1))
