"""The explorer in a browser: from disk, without a network, by keyboard, on a desk and on a phone."""

import re
import shutil
from dataclasses import replace

import pytest

from kvroof.catalog.models import load_model
from kvroof.catalog.profiles import load_hardware
from kvroof.ground.units import format_bytes, format_time
from kvroof.roofline.plan import Plan
from kvroof.search.tables import explorer_tables
from kvroof.serving.latency import estimate
from kvroof.view.explorer.page import explorer_page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe judges the page")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
MODELS, MACHINES = ("llama-3.1-8b", "gemma-3-27b"), ("h100-sxm", "rtx-4090")
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 375, "height": 667}
GRAVE = {"serious", "critical"}
both_windows = pytest.mark.parametrize("page", [DESK, PHONE], ids=["desk", "phone"], indirect=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    file = tmp_path_factory.mktemp("explorer") / "explorer.html"
    tables = explorer_tables(
        [(name, load_model(name)) for name in MODELS], [(name, load_hardware(name)) for name in MACHINES]
    )
    file.write_text(explorer_page(tables))
    return file.as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(request, browser, address):
    """The page in a window with the network off, which may not complain and may not ask for anything."""
    context = browser.new_context(viewport=getattr(request, "param", DESK), offline=True)
    page, heard = context.new_page(), []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on(
        "request", lambda asked: heard.append(asked.url) if asked.url.partition("#")[0] != address else None
    )
    page.goto(address)
    settle(page)
    yield page
    context.close()
    assert heard == []


def test_names_that_are_scripts_are_text(browser, tmp_path):
    wicked = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    tables = explorer_tables(
        [(wicked, replace(load_model(MODELS[0]), name=wicked))],
        [(wicked, replace(load_hardware(MACHINES[1]), name=wicked))],
    )
    file = tmp_path / "explorer.html"
    file.write_text(explorer_page(tables))
    context = browser.new_context(viewport=DESK, offline=True)
    page, heard = context.new_page(), []
    page.on("dialog", lambda dialog: heard.append(dialog.message) or dialog.dismiss())
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.goto(file.as_uri())
    settle(page)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert wicked in page.locator("#verdict").text_content() + page.locator("#model").text_content()
    context.close()
    assert heard == []


def settle(page):
    """Wait until the page has shown and said everything."""
    page.wait_for_selector("#results[aria-busy=false]", state="attached")


def tile(page, name: str) -> str:
    return (
        page.locator(".tiles div", has=page.locator("dt", has_text=re.compile(f"^{name}")))
        .locator(".value")
        .inner_text()
    )


def exact(page, name: str) -> int:
    return int(page.locator(f"#{name}-exact").input_value())


@both_windows
def test_a_slider_moved_by_keyboard_shows_the_numbers_of_python(page):
    page.locator("#calibration").select_option("none")
    for name, key, presses in (("batch", "ArrowRight", 3), ("isl", "ArrowRight", 5), ("osl", "ArrowLeft", 4)):
        page.locator(f"#{name}").focus()
        for _ in range(presses):
            page.keyboard.press(key)
    settle(page)
    asked = {name: exact(page, name) for name in ("batch", "isl", "osl")}
    assert asked == {"batch": 14, "isl": 4608 + 512, "osl": 128}
    answer = estimate(Plan.of("llama-3.1-8b", "h100-sxm"), **asked)
    assert tile(page, "TPOT") == format_time(answer.tpot_s)
    assert tile(page, "TTFT") == format_time(answer.ttft_s)
    assert tile(page, "Most sequences") == f"{answer.memory.max_seqs:,}"
    assert tile(page, "Longest context") == f"{answer.memory.max_tokens:,}"
    spare = format_bytes(answer.memory.headroom_bytes)
    assert spare in page.locator("#verdict").inner_text()
    said = page.locator("#said").text_content()
    assert format_time(answer.tpot_s) in said
    assert spare in said
    assert page.locator("#batch").get_attribute("aria-valuetext") == "14 requests"


def test_an_address_holds_the_choice(page):
    page.locator("#model").select_option("gemma-3-27b")
    page.locator("#machine").select_option("rtx-4090")
    page.locator("#isl-exact").fill("3333")
    page.locator("#isl-exact").press("Enter")
    settle(page)
    shown, held = page.locator("#results").inner_text(), page.url
    assert "isl=3333" in held
    assert "No" in page.locator("#verdict").inner_text()
    again = page.context.new_page()
    again.goto(held)
    settle(again)
    assert again.locator("#results").inner_text() == shown


def test_a_row_of_the_comparison_brings_up_its_machine(page):
    page.get_by_role("button", name="rtx-4090").click()
    settle(page)
    assert page.locator("#machine").input_value() == "rtx-4090"
    assert page.evaluate("document.activeElement.id") == "answer"


@both_windows
def test_nothing_is_wider_than_the_window(page):
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_every_operation_with_arithmetic_stands_in_the_roofline(page):
    assert page.locator("#roofline-chart title").count() == 6
    page.get_by_label("prefill").check()
    settle(page)
    label = page.locator("#roofline-chart svg").get_attribute("aria-label")
    assert label.startswith("Operations of the prefill on h100-sxm under its roofline")


@pytest.mark.parametrize(
    ("window", "choice"),
    [(DESK, ""), (PHONE, "#model=gemma-3-27b&hw=rtx-4090&tp=2&batch=512")],
    ids=["desk", "phone, nothing fits and no link is known"],
)
def test_axe_finds_no_serious_violation(browser, address, window, choice):
    context = browser.new_context(viewport=window, offline=True, bypass_csp=True)
    page = context.new_page()
    page.goto(address + choice)
    settle(page)
    found = axe.Axe().run(page).response["violations"]
    context.close()
    assert [(v["id"], v["help"]) for v in found if v["impact"] in GRAVE] == []
