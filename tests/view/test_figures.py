"""What each figure shows is what its records hold; and what all figures have in common."""

import re
from dataclasses import replace
from itertools import combinations
from math import exp, inf, log, log10

import pytest

from kvroof.catalog.models import load_model
from kvroof.memory.blocks import HOLE
from kvroof.memory.kv import kv
from kvroof.memory.ledger import fit
from kvroof.roofline.efficiency import GENERIC, IDENTITY
from kvroof.serving.latency import Calibration, estimate
from kvroof.view.figures.capacity import capacity_frontier
from kvroof.view.figures.footprint import footprint
from kvroof.view.figures.frontier import latency_frontier
from kvroof.view.figures.load import ttft_against_load
from kvroof.view.figures.memory import memory_waterfall
from kvroof.view.figures.pool_case import pool_case
from kvroof.view.figures.pools import TIE
from kvroof.view.figures.rates import rate_map
from kvroof.view.figures.roofline import CHAR_PX, DECADE_PX, LABEL_PX, operations_on_roofline
from kvroof.view.page import figure_page
from kvroof.view.theme import CAPTION, COLOURS, DETAIL, INK, Axis, bare, frame, style, tint, words

from .conftest import (
    BARS,
    BY_LIMIT,
    CASE,
    CHOICES,
    CURVES,
    FAMILIES,
    GIB,
    LIMITS_S,
    LINES,
    NAMED,
    WICKED,
    choice,
)

KINDS = (
    "roofline", "footprint", "memory", "capacity", "frontier", "load", "pools", "sensitivity", "measured",
    "schedule", "blocks", "rates", "case",
)  # fmt: skip
UNIT = re.compile(
    r"(FLOP|bytes|GiB|tokens|sequences|requests/s|%|number|of row|\bms\b|\bs\b|order of arrival|^sequence$"
    r"|stands in the memory|is changed|^way of serving$)"
)


def named(figure, name):
    """Return the trace of that name."""
    (trace,) = [t for t in figure.data if t.name == name]
    return trace


@pytest.mark.parametrize("kind", KINDS)
def test_every_axis_has_a_title_that_says_its_unit(figures, kind):
    layout = figures[kind].layout.to_plotly_json()
    axes = {key: value for key, value in layout.items() if re.match(r"[xy]axis", key)}
    assert len(axes) >= 2
    assert {key: a["title"]["text"] for key, a in axes.items() if not UNIT.search(a["title"]["text"])} == {}


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_states_its_answer_its_assumptions_and_what_it_shows(figures, kind):
    said = words(figures[kind])
    assert re.search(r"\d|bound by", said.title)
    assert len(said.caption) > 10
    assert said.caption.endswith(".")
    assert len(said.alt) > 20
    drawn = [a.text.replace("<br>", " ") for a in figures[kind].layout.annotations if a.name == CAPTION]
    assert drawn == [said.caption.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")]


@pytest.mark.parametrize("kind", ["capacity", "load"])
def test_figures_of_times_name_their_calibration(figures, kind):
    assert (
        "calibrated with h100-sxm-vllm, kernels off by 10% on points not fitted"
        in words(figures[kind]).caption
    )


@pytest.mark.parametrize("kind", KINDS)
def test_series_differ_in_more_than_colour(figures, kind):
    looks = {}
    for trace in figures[kind].data:
        if trace.type not in ("scatter", "bar") or (not trace.showlegend and trace.showlegend is not None):
            continue
        marker = trace.marker.symbol if trace.type == "scatter" and "markers" in trace.mode else None
        dash = trace.line.dash if trace.type == "scatter" and "lines" in trace.mode else None
        hatch = trace.marker.pattern.shape if trace.type == "bar" else None
        width = trace.line.width if trace.type == "scatter" else trace.width
        looks[trace.name] = (
            trace.type,
            trace.fill if trace.type == "scatter" else None,
            marker,
            dash,
            hatch,
            width,
        )
    same = [pair for pair in combinations(looks, 2) if looks[pair[0]] == looks[pair[1]]]
    if kind != "memory":  # each bar has its own name below it
        assert same == []


def test_seven_styles_differ_in_each_of_colour_dash_mark_and_hatch():
    styles = [style(number) for number in range(7)]
    assert [len(set(column)) for column in zip(*styles, strict=True)] == [7, 7, 7, 7]


def luminance(colour):
    """Return the relative luminance. Source: WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", COLOURS)
def test_text_in_coloured_cells_can_be_read(colour):
    assert (luminance(tint(colour)) + 0.05) / (luminance("#222222") + 0.05) >= 4.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_gets_the_same_figure_without_title_and_caption(figures, kind):
    made = bare(figures[kind])
    assert [t.to_plotly_json() for t in made.data] == [t.to_plotly_json() for t in figures[kind].data]
    assert made.layout.title.text is None
    assert all(a.name != CAPTION for a in made.layout.annotations)
    assert any(a.name == CAPTION for a in figures[kind].layout.annotations)


def test_the_roofline_names_its_calibration_and_error(figures, answer):
    assert (
        f"{answer.calibration.name}, kernels off by {answer.calibration.held_out_mape:.0%}"
        in words(figures["roofline"]).caption
    )


def test_the_roofline_places_each_operation_at_its_intensity_and_speed(figures, answer):
    for phase, ops in (("prefill", answer.prefill_ops), ("decode", answer.decode_ops)):
        marks = named(figures["roofline"], phase)
        found = {name: (x, y) for name, x, y in zip(marks.text, marks.x, marks.y, strict=True)}
        for op in ops:
            if op.flops:
                assert found.pop(op.name) == (op.flops / op.hbm_bytes, op.flops / op.seconds)
        assert found == {}


def test_no_operation_stands_above_the_roof_of_the_machine(figures, plan):
    peak, bandwidth = plan.hardware.peak_flops_per_s["bf16"], plan.hardware.hbm_bytes_per_s
    for phase in ("prefill", "decode"):
        marks = named(figures["roofline"], phase)
        assert all(y <= min(peak, x * bandwidth) for x, y in zip(marks.x, marks.y, strict=True))


def test_the_roof_breaks_at_the_ridge_and_calibrated_roofs_lie_below_it(figures, plan):
    machine = plan.hardware
    solid = named(figures["roofline"], "bf16: 989.4 TFLOP/s, ridge at 295 FLOP/B")
    assert solid.x[1] == machine.peak_flops_per_s["bf16"] / machine.hbm_bytes_per_s
    for family in FAMILIES:
        dashed = named(figures["roofline"], f"{family} reaches")
        kernel = plan.efficiency.kernels[family]
        assert dashed.y[1] == pytest.approx(kernel.compute * solid.y[1])
        assert dashed.y[0] == pytest.approx(kernel.hbm * solid.y[0])
        assert dashed.line.dash != "solid"


def test_an_uncalibrated_roofline_says_so_and_has_no_dashed_roof(plan):
    bound = replace(plan, efficiency=IDENTITY)
    figure = operations_on_roofline(
        estimate(bound, isl=512, osl=4, batch=2), plan.hardware, IDENTITY, FAMILIES
    )
    assert "bounds, not predictions" in words(figure).caption
    assert not any(t.name.endswith("reaches") for t in figure.data)


def test_the_footprint_is_the_payload_of_each_report(figures, growth):
    for reports in growth:
        line = named(figures["footprint"], reports[0].model)
        assert list(line.x) == [r.tokens for r in reports]
        assert list(line.y) == [r.payload_bytes for r in reports]


def test_the_footprint_ticks_where_a_window_is_full(figures):
    tick = named(figures["footprint"], "gemma-3-27b, window full")
    assert list(tick.x) == [1024]
    assert not any(t.name == "llama-3.1-8b, window full" for t in figures["footprint"].data)


def test_the_footprint_of_a_fixed_state_starts_level():
    model = load_model("mamba-codestral-7b-v0.1")
    figure = footprint([[kv(model, tokens=n) for n in (64, 4096)]])
    (line,) = figure.data
    assert line.y[0] == line.y[1] > 0
    assert "holds a fixed state" in words(figure).caption


def test_the_waterfall_goes_from_capacity_over_the_budget_to_the_headroom(figures, ledger):
    bars = {t.name: (t.base[0], t.y[0]) for t in figures["memory"].data if t.type == "bar"}
    assert bars["capacity"] == (0, 80)
    assert bars["kept free"] == (80, pytest.approx(-8, abs=1e-6))
    assert bars["weights"] == (pytest.approx(72, abs=1e-6), -15)
    assert bars["KV cache"] == (pytest.approx(57, abs=1e-6), -4)
    assert bars["reserve"] == (pytest.approx(53, abs=1e-6), -2)
    assert bars["headroom"] == (0, ledger.headroom_bytes / GIB)
    last = bars["reserve"][0] + bars["reserve"][1]
    assert last == pytest.approx(ledger.headroom_bytes / GIB)


def test_the_waterfall_of_what_does_not_fit_ends_below_zero():
    short = fit(load_model("llama-3.1-70b"), 80 * GIB)
    figure = memory_waterfall(short, "h100-sxm")
    assert named(figure, "short by").y[0] == short.headroom_bytes / GIB < 0
    assert "do not fit" in words(figure).title


def test_the_capacity_frontier_is_what_the_ledgers_admit(figures, ledgers):
    full = named(figures["capacity"], "memory is full")
    assert list(zip(full.x, full.y, strict=True)) == [(x.tokens, x.max_seqs) for x in ledgers if x.max_seqs]
    for line in LINES:
        drawn = named(figures["capacity"], f"TPOT {line.tpot_s * 1e3:g} ms")
        assert (tuple(drawn.x), tuple(drawn.y)) == (line.tokens, line.seqs)


def test_a_model_that_never_fits_is_said_to():
    none = [fit(load_model("llama-3.1-405b"), 80 * GIB, tokens=n) for n in (1024, 8192)]
    figure = capacity_frontier(none, [], "h100-sxm", None)
    assert words(figure).title.startswith("Not one sequence of 1,024 tokens")


def test_the_latency_frontier_tells_modes_apart_and_holds_every_point(figures):
    for curve in CURVES:
        split = curve.mode == "disaggregated"
        line = named(figures["frontier"], f"{curve.name}, disaggregated" if split else curve.name)
        assert list(line.x) == [p.tokens_per_s_per_user for p in curve.points]
        assert list(line.y) == [p.tokens_per_s_per_device for p in curve.points]
        assert (line.line.dash == "dash", line.marker.symbol.endswith("-open")) == (split, split)
    assert (
        "950 tokens/s per device (two); fastest for one user: 110 tokens/s (two)"
        in words(figures["frontier"]).title
    )


def test_the_load_figure_shows_both_percentiles_and_where_the_line_ends(figures, states):
    for percentile in ("p50", "p90"):
        line = named(figures["load"], f"chunked, {percentile}")
        assert list(line.x) == [1.0, 10.0, 30.0]
        assert list(line.y) == [getattr(s.ttft_s, percentile) for s in states]
    assert "chunked ends where decode is full" in words(figures["load"]).caption


def test_the_load_figure_names_the_rate_at_which_its_line_crosses_the_limit(states):
    """The line between two points is straight over the logarithm of the time."""
    first, last = states[1], states[2]
    limit = (first.ttft_s.p90 * last.ttft_s.p90) ** 0.5
    said = words(ttft_against_load({"chunked": states}, {}, "requests", limit, None)).title
    assert said.endswith(f"chunked up to {(first.requests_per_s + last.requests_per_s) / 2:.3g} requests/s")
    low = words(ttft_against_load({"chunked": states}, {}, "requests", states[0].ttft_s.p90 / 2, None)).title
    assert low.endswith("chunked at no rate shown")


def test_a_bound_and_a_prediction_are_not_ranked_together():
    """A bound is about twice as fast as what is measured: it would always win."""
    typical = Calibration(name=GENERIC, held_out_mape=0.2)
    curves = [
        CURVES[0]._replace(name="m-1", calibration=NAMED),
        CURVES[0]._replace(name="t-1", calibration=typical),
        CURVES[1]._replace(name="b-1", calibration=None),
    ]
    figure = latency_frontier(curves, "requests")
    title, caption, _ = words(figure)
    assert title == (
        "m-1 (calibrated): 900 tokens/s per device, 100 for one user;"
        " t-1 (typical): 900 tokens/s per device, 100 for one user;"
        " b-1 (bounds): 950 tokens/s per device, 110 for one user"
    )
    assert "b-1: no calibration: times are bounds" in caption
    assert "m-1: calibrated with h100-sxm-vllm" in caption
    assert "t-1: times of a typical machine, not of this one, kernels off by 20%" in caption
    dashes = {trace.name: trace.line.dash for trace in figure.data}
    assert dashes["m-1 (calibrated)"] == "solid"
    assert len(set(dashes.values())) == 3


def test_lines_of_one_kind_are_ranked_and_their_calibration_is_said_once():
    curves = [curve._replace(calibration=NAMED) for curve in CURVES]
    title, caption, _ = words(latency_frontier(curves, "requests"))
    assert "most throughput: 950" in title.lower()
    assert caption.count("calibrated with") == 1


def test_the_pool_map_colours_a_win_by_its_ratio_and_a_tie_not_at_all(figures):
    (grid,) = figures["pools"].data
    assert [list(row) for row in grid.z] == [[0.25, 0.0], [-0.5, None]]
    assert grid.text[0][0] == f"two pools<br>{exp(CHOICES[0][0].log_ratio):.2f}x"
    assert grid.text[0][1].startswith("tie")
    assert (grid.text[1][0], grid.text[1][1]) == ("one pool<br>0.61x", "neither")
    assert (
        words(figures["pools"]).title
        == "Of 3 cases that can be served, one pool wins 1, two pools win 1, 1 tie"
    )


def test_no_cell_of_a_pool_map_is_blank(figures):
    """A tie has a tint, every cell a border, and where neither way serves the map says so."""
    figure = figures["pools"]
    (grid,) = figure.data
    tie = next(colour for place, colour in grid.colorscale if place == 0.499 and colour == TIE)
    assert tie != figure.layout.plot_bgcolor
    corners = {(s.x0, s.x1, s.y0, s.y1) for s in figure.layout.shapes}
    assert corners == {(x - 0.5, x + 0.5, y - 0.5, y + 0.5) for x in (0, 1) for y in (0, 1)}
    assert all(text for row in grid.text for text in row)
    for _, colour in grid.colorscale:
        assert (luminance(colour) + 0.05) / (luminance(INK) + 0.05) >= 4.5


def test_a_map_of_one_case_is_drawn_as_two_goodputs_with_the_error_of_their_ratio(figures):
    bars = {bar.y[0]: bar for bar in figures["case"].data}
    assert {way: bar.x[0] for way, bar in bars.items()} == {"one pool": 20.0, "two pools": 21.0}
    whisker = bars["two pools"].error_x
    assert 21.0 + whisker.array[0] == pytest.approx(21.0 * exp(CASE.log_error))
    assert 21.0 - whisker.arrayminus[0] == pytest.approx(21.0 / exp(CASE.log_error))
    assert not bars["one pool"].error_x.visible
    assert words(figures["case"]).title.startswith("A tie: two pools serve 5% more requests than one")
    assert "512 prompt tokens, 64 output tokens" in words(figures["case"]).caption


@pytest.mark.parametrize(
    ("verdict", "one", "two", "said"),
    [
        ("aggregate", 20.0, None, "Only one pool keeps the limits, up to 20 requests/s"),
        ("disaggregate", None, 8.0, "Only two pools keep the limits, up to 8 requests/s"),
        ("aggregate", 20.0, 10.0, "Two pools serve 50% fewer requests than one, which is more than"),
    ],
)
def test_a_single_case_says_who_serves_more_or_at_all(verdict, one, two, said):
    ratio = log(two / one) if one and two else inf if two else -inf
    figure = pool_case(choice(verdict, ratio, one, two), "a case", "requests", "bounds")
    assert words(figure).title.startswith(said)


def test_the_rate_map_is_each_ways_goodput_with_the_verdict_above_the_higher(figures):
    figure = figures["rates"]
    rates = {"one pool": [0, 0, 20.0, 30.0], "two pools": [0, 8.0, 21.0, 18.2]}
    for name, goodputs in rates.items():
        line = named(figure, name)
        assert list(line.x) == pytest.approx([s * 1e3 for s in LIMITS_S])
        assert list(line.y) == goodputs
    band = named(figure, "two pools, one sigma")
    spread = [exp(BY_LIMIT[n].log_error) for n in (2, 3)]
    assert list(band.y) == pytest.approx(
        [21.0 * spread[0], 18.2 * spread[1], 18.2 / spread[1], 21.0 / spread[0]]
    )
    said = [(a.x, a.y, a.text) for a in figure.layout.annotations if a.name == DETAIL]
    assert said == [
        (pytest.approx(log10(20)), 8.0 * exp(BY_LIMIT[1].log_error), "only two pools"),
        (pytest.approx(log10(50)), 21.0 * spread[0], f"tie, {exp(BY_LIMIT[2].log_ratio):.2f}x"),
        (pytest.approx(log10(100)), 30.0, f"one pool, {exp(BY_LIMIT[3].log_ratio):.2f}x"),
    ]
    title = words(figure).title
    assert title == (
        "TPOT limit: two pools serve more at 20 ms; a tie at 50 ms; one pool serves more at 100 ms"
    )


def test_the_error_of_a_single_limit_is_seen_and_none_is_drawn_where_only_one_way_serves():
    (band, *_) = rate_map([BY_LIMIT[2]], "TPOT", [0.05], "requests", "bounds").data
    assert min(band.x) < 50 < max(band.x)
    assert max(band.y) == pytest.approx(21.0 * exp(BY_LIMIT[2].log_error))
    only = rate_map([BY_LIMIT[1]], "TPOT", [0.02], "requests", "bounds")
    assert [trace.name for trace in only.data] == ["one pool", "two pools"]


def test_a_rate_map_without_any_choice_says_so():
    assert words(rate_map([None], "TTFT", [0.1], "requests", "bounds")).title.startswith("Neither one pool")


def test_labels_of_the_roofline_stay_apart(figures):
    """Within the pixels that a decade is taken to have."""
    said = [a for a in figures["roofline"].layout.annotations if a.name == DETAIL]
    assert len(said) >= 3
    for one, other in combinations(said, 2):
        aside = abs((one.x - other.x) * DECADE_PX[0] + one.ax - other.ax)
        above = abs((other.y - one.y) * DECADE_PX[1] + one.ay - other.ay)
        assert above >= LABEL_PX - 1e-6 or aside > CHAR_PX * min(len(one.text), len(other.text)) / 2


def test_a_title_of_two_lines_is_broken_in_the_middle_and_not_before_a_unit():
    figure = frame("a" * 60 + " and " + "b" * 40 + " 12 ms", Axis("x"), Axis("y"), ["said"])
    lines = re.sub("</?b>", "", figure.layout.title.text).split("<br>")
    assert len(lines) == 2
    assert lines[-1].endswith("12\N{NO-BREAK SPACE}ms")
    assert max(map(len, lines)) <= 66


def test_sensitivity_bars_are_the_elasticities_strongest_last_and_the_small_left_out(figures):
    for time, by in (("TPOT", BARS.tpot), ("TTFT", BARS.ttft)):
        bars = named(figures["sensitivity"], time)
        assert list(bars.y) == ["starts and host time", "HBM bandwidth", "arithmetic peak"]
        assert list(bars.x) == [by["overhead"], by["hbm_bandwidth"], by["compute"]]
    title = words(figures["sensitivity"]).title
    assert (
        title
        == "1 % more HBM bandwidth changes TPOT by -0.80 %; 1 % more arithmetic peak changes TTFT by -0.90 %"
    )


def test_predictions_stand_over_what_was_measured_with_their_interval(figures):
    exact, short = (named_pair(figures["measured"], name) for name in ("llama-3.1-8b", "gpt-oss-20b"))
    assert (exact.x[0], exact.y[0]) == (pytest.approx(10), pytest.approx(11))
    assert (exact.error_y.arrayminus[0], exact.error_y.array[0]) == (pytest.approx(1), pytest.approx(1.1))
    assert (short.x[0], short.y[0]) == (pytest.approx(20), pytest.approx(10))
    assert words(figures["measured"]).title.startswith("TPOT is off by 30% on average")


def named_pair(figure, model):
    """Return a model's trace of TPOT."""
    return next(t for t in figure.data if t.name == f"{model} on h100-sxm" and t.xaxis == "x")


def test_the_gantt_chart_accounts_for_every_moment_of_a_request(figures, ran):
    bars = [t for t in figures["schedule"].data if t.type == "bar"]
    for one in ran.served:
        parts = sorted(
            (start, start + width)
            for t in bars
            for y, start, width in zip(t.y, t.base, t.x, strict=True)
            if y == str(one.request)
        )
        scale = 1e3 if max(s.finish_s for s in ran.served) < 1 else 1
        assert parts[0][0] == pytest.approx(one.arrival_s * scale)
        assert parts[-1][1] == pytest.approx(one.finish_s * scale)
        waits = sum(
            width
            for t in bars
            if t.name == "waits"
            for y, width in zip(t.y, t.x, strict=True)
            if y == str(one.request)
        )
        assert waits == pytest.approx(one.queue_s * scale, abs=1e-9)


def test_the_block_picture_is_the_block_tables_and_their_owners(figures, blocks):
    tables, pool = figures["blocks"].data
    for row, seq in enumerate(blocks.sequences):
        shown = [text.split(" ")[0] for text in tables.text[row] if text]
        assert shown == [str(b) for b in blocks.block_table(seq) if b != HOLE]
    assert tables.text[0][2].endswith("(8/16)")
    flat = [text for row in pool.text for text in row]
    assert flat[blocks.block_table(0)[0]] == "0+1"
    assert flat.count("free") == blocks.free_blocks


def strings(held, path=()):
    """Yield every text of a figure with its place."""
    if isinstance(held, dict):
        for key, value in held.items():
            yield from strings(value, (*path, key))
    elif isinstance(held, (list, tuple)):
        for value in held:
            yield from strings(value, path)
    elif isinstance(held, str):
        yield path, held


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_is_a_script_is_text_in_every_figure_and_its_page(wicked_figures, figures, kind):
    """Only what groups lines in the legend is not shown, and stands as it is."""
    figure = wicked_figures[kind]
    shown = [text for path, text in strings(bare(figure).to_plotly_json()) if "legendgroup" not in path]
    assert not any(re.search(r"<(?!/?(?:b|br|extra)>)", text) for text in shown)
    drawn = [figure.layout.title.text, *(a.text for a in figure.layout.annotations)]
    assert not any("<script" in text or "<a " in text for text in drawn)
    page = figure_page(figure, f"kvroof plot {kind} '{WICKED}'")
    assert "<script>alert" not in page
    assert "<a href='javascript" not in page
    assert page.count("<script") == figure_page(figures[kind], "kvroof").count("<script")
    assert kind in ("sensitivity", "pools", "rates") or "&lt;script&gt;alert(1)" in page


def test_names_are_shown_as_they_are_and_never_read_as_markup(growth):
    wicked = "<b>x</b><a href='https://evil.example'>&lt;"
    figure = footprint([[replace(r, model=wicked) for r in growth[0]]])
    assert "<b>x" not in figure.data[0].name
    assert figure.data[0].name == "&lt;b&gt;x&lt;/b&gt;&lt;a href='https://evil.example'&gt;&amp;lt;"
    assert wicked in words(figure).title
    assert "<a href" not in figure.layout.title.text
