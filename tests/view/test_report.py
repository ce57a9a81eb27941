"""The report: one file, complete, true to its records, safe with any name, and usable by everybody."""

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import pairwise

import pytest

from kvroof.catalog.profiles import load_profile
from kvroof.ground.units import format_bytes, format_time
from kvroof.memory.describe import describe
from kvroof.view.memory import ledger_table
from kvroof.view.page import figure_page
from kvroof.view.report import Candidate, Command, Report, report_page

from .conftest import CURVES, FAMILIES, LINES, NAMED

WICKED = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
VOID = {"meta", "link", "img", "br", "hr", "input"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)


class Page(HTMLParser):
    """A page as its elements: tag, attributes, and text; and the text of each script."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.cells = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        for _, _, text in self.open:
            text.append(data)

    def all(self, tag):
        return [
            (attrs, " ".join("".join(text).split())) for name, attrs, text in self.elements if name == tag
        ]

    def texts(self, tag):
        return [text for _, text in self.all(tag)]


@pytest.fixture(scope="session")
def report(plan, answer, growth, ledgers):
    """Return the records of a report on one machine."""
    return Report(
        card=describe(plan.model),
        origin={"hub_id": "meta-llama/Llama-3.1-8B", "source": "a file"},
        growth=growth[0],
        candidates=(
            Candidate(
                machine=plan.hardware,
                profile=load_profile("h100-sxm"),
                answer=answer,
                efficiency=plan.efficiency,
                families=FAMILIES,
                ledgers=ledgers,
                lines=LINES,
                curve=CURVES[0],
            ),
        ),
        commands=(Command("Times", "kvroof estimate llama-3.1-8b h100-sxm"),),
    )


@pytest.fixture(scope="session")
def text(report):
    return report_page(report)


@pytest.fixture(scope="session")
def page(text):
    return Page(text)


@pytest.fixture(scope="session")
def wicked(report, answer):
    """Return a report in which every name, note, source and command is markup that runs a script."""
    held, profile = report.candidates[0], load_profile("h100-sxm")
    source = type(profile.hbm_bytes_per_s)(value=1.0, source=WICKED, note=WICKED)
    fields = {name: getattr(profile, name) for name in profile.__struct_fields__}
    return report_page(
        report._replace(
            card=replace(report.card, name=WICKED, notes=(WICKED,)),
            origin={WICKED: WICKED},
            growth=[replace(r, model=WICKED) for r in report.growth],
            candidates=[
                held._replace(
                    machine=replace(held.machine, name=WICKED, disagreements=(WICKED,)),
                    profile=type(profile)(**fields | {"hbm_bytes_per_s": source}),
                    answer=replace(answer, model=WICKED, hardware=WICKED, assumptions=(WICKED,)),
                    ledgers=[replace(ledger, model=WICKED) for ledger in held.ledgers],
                    curve=held.curve._replace(name=WICKED),
                )
            ],
            commands=(Command(WICKED, WICKED),),
        )
    )


@pytest.fixture(scope="session")
def figure(figures):
    """Return the page of a single figure."""
    return figure_page(figures["capacity"], "kvroof plot capacity x --out 'a b.html'")


def test_a_report_is_one_file_below_six_megabytes(text):
    assert len(text.encode()) < 6_000_000


@pytest.mark.parametrize("kind", ["text", "figure"])
def test_nothing_is_fetched(kind, request):
    held = request.getfixturevalue(kind)
    page = Page(held)
    links = [
        v
        for _, attrs, _ in page.elements
        for k, v in attrs.items()
        if k in ("src", "href", "srcset", "action")
    ]
    assert [link for link in links if not link.startswith("#")] == []
    assert page.all("link") == page.all("iframe") == []
    (style,) = page.texts("style")
    assert "@import" not in style
    assert "url(" not in style
    (policy,) = [
        a["content"] for a, _ in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"
    ]
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed.pop("default-src") == "'none'"
    assert not re.search(r"https?:|\*", " ".join(allowed.values()))


def test_the_same_records_make_the_same_bytes(report, text):
    assert report_page(report) == text


def test_plotly_is_in_the_file_once(text):
    assert len(re.findall(r"\* plotly\.js v\d", text)) == 1


def test_the_verdict_and_the_ledger_are_the_records(page, answer):
    ledger, cells = answer.memory, page.texts("td")
    (verdict,) = [t for a, t in page.all("li") if a.get("class")]
    assert verdict.startswith("YES it fits on 1 device of h100-sxm")
    for shown in (
        format_time(answer.ttft_s),
        format_time(answer.tpot_s),
        format_bytes(ledger.headroom_bytes),
    ):
        assert shown in verdict
    for size in (ledger.capacity_bytes, ledger.weights_bytes, ledger.kv_bytes, ledger.headroom_bytes):
        assert f"{size:,}" in cells


def test_a_machine_that_holds_too_little_gets_a_no(report, answer):
    short = replace(answer, fits=False, memory=replace(answer.memory, fits=False, headroom_bytes=-3 * 2**30))
    page = Page(report_page(report._replace(candidates=[report.candidates[0]._replace(answer=short)])))
    assert (
        "NO it does not fit on 1 device of h100-sxm: 3.00 GiB short. Its times suppose that it did."
        in page.texts("li")
    )


def test_every_operation_and_every_assumption_is_there(page, answer):
    rows = page.texts("th")
    assert {op.name for op in (*answer.prefill_ops, *answer.decode_ops)} <= set(rows)
    assert set(answer.assumptions) <= set(page.texts("li"))


def test_every_hardware_number_stands_with_its_source(page):
    cells = page.texts("td")
    for key, held in load_profile("h100-sxm").quantities():
        assert key in page.texts("th")
        assert " ".join(held.source.split()) in cells


def test_the_uncertainty_names_the_calibration_and_its_error(page, answer):
    cells = page.texts("td")
    low, high = answer.interval.tpot_s
    assert f"{format_time(low)} to {format_time(high)}" in cells
    assert "h100-sxm-vllm" in cells
    assert format_time(answer.lower_bound_s.decode) in cells


def test_without_a_calibration_the_report_says_bound(report, answer):
    bound = replace(answer, calibration=None, interval=None)
    page = Page(report_page(report._replace(candidates=[report.candidates[0]._replace(answer=bound)])))
    assert "none: a bound" in page.texts("td")
    assert "Its times are bounds:" in " ".join(page.texts("li"))


def test_machines_of_unlike_evidence_are_told_apart(report, answer):
    """Beside a calibrated machine one without is a bound: in the table, in the words and in the figure."""
    held = report.candidates[0]
    own = held._replace(
        machine=replace(held.machine, name="acme-x1"),
        answer=replace(answer, hardware="acme-x1", calibration=None, interval=None),
        curve=held.curve._replace(name="acme-x1", calibration=None),
    )
    measured = held._replace(curve=held.curve._replace(name="h100-sxm", calibration=NAMED))
    page = Page(report_page(report._replace(candidates=(measured, own))))
    assert {"calibrated", "bounds"} <= set(page.texts("td"))
    assert any("(calibrated): " in title and "acme-x1 (bounds): " in title for title in page.texts("h3"))
    ids = [attrs["aria-label"] for attrs, _ in page.all("div") if attrs.get("role") == "region"]
    assert len(ids) == len(set(ids))


def test_the_ledger_of_the_report_is_the_one_of_the_console(report, answer):
    """One table, drawn twice: what stands in host memory is in both."""
    memory = replace(answer.memory, host_bytes=12_345_678)
    held = report.candidates[0]._replace(answer=replace(answer, memory=memory))
    page = Page(report_page(report._replace(candidates=(held,))))
    table = ledger_table(memory, held.machine)
    assert [row[0] for row in table.rows][-1] == "in host memory"
    assert {cell for row in table.rows for cell in row} <= {*page.texts("td"), *page.texts("th")}


def test_commands_are_there_to_copy(page, figure):
    assert page.texts("pre") == ["kvroof estimate llama-3.1-8b h100-sxm"]
    assert Page(figure).texts("pre") == ["kvroof plot capacity x --out 'a b.html'"]


def test_names_notes_and_sources_cannot_inject_markup(wicked, page):
    held = Page(wicked)
    assert held.all("img") == []
    assert len(held.all("script")) == len(page.all("script"))
    assert WICKED in held.texts("pre")
    assert WICKED in held.texts("td")
    assert not any("alert(" in text for attrs, text in held.all("script") if "data-figure" not in attrs)
    assert not any("<" in text for attrs, text in held.all("script") if "data-figure" in attrs)


@pytest.mark.parametrize("kind", ["text", "figure"])
def test_the_page_can_be_read_without_seeing_it(kind, request):
    page = Page(request.getfixturevalue(kind))
    (html,), (title,) = page.all("html"), page.texts("title")
    assert html[0]["lang"] == "en"
    assert title
    assert len(page.all("h1")) == len(page.all("main")) == 1
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for _, attrs, _ in page.elements:
        assert attrs.get("aria-labelledby", ids[0]) in ids
        assert attrs.get("href", "#" + ids[0])[1:] in ids
        if attrs.get("role") == "img":
            assert len(attrs["aria-label"]) > 20
    assert len(page.all("figcaption")) == len(page.all("figure")) == len(page.all("details"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(attrs.get("scope") in ("row", "col") and held for attrs, held in page.all("th"))


def test_text_has_contrast_on_white(text):
    from .test_figures import luminance

    (style,) = Page(text).texts("style")
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6})", style))
    for name in ("ink", "soft", "blue"):
        colour = colours[name] if len(colours[name]) == 7 else "#" + "".join(c * 2 for c in colours[name][1:])
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5


@pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None, reason="needs a Chrome and the package playwright"
)
def test_a_browser_without_network_draws_every_figure_at_phone_width(wicked, tmp_path):
    from playwright.sync_api import sync_playwright

    said, asked, path = [], [], tmp_path / "report.html"
    path.write_text(wicked, encoding="utf-8")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        view = browser.new_context(offline=True, viewport={"width": 390, "height": 844}).new_page()
        view.on("console", lambda message: said.append(message.text))
        view.on("pageerror", lambda error: said.append(str(error)))
        view.on("dialog", lambda dialog: said.append(dialog.message) or dialog.dismiss())
        view.on("request", lambda request: asked.append(request.url))
        view.goto(path.as_uri())
        drawn = view.locator(".plot:has(svg .trace)").count()
        width = view.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert said == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked)
    assert (drawn, width) == (5, 390)
