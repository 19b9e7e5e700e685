"""Pages in a real browser: they open from disk without network or errors, sort, toggle, print, and need no mouse."""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import struct
import time
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from srns.audit import Plan
from srns.audit.findings import conclude
from srns.audit.page import make_page as audit_page
from srns.audit.sweep import contestants
from srns.audit.trial import trial
from srns.page import Cell, Curve, Page
from srns.presets import make_config
from srns.report import make_page, make_report
from srns.runs import train_run

selenium = pytest.importorskip("selenium.webdriver")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not BROWSER or not DRIVER, reason="neither Chromium and its driver nor Chrome's are installed here"
)

QUIET = (
    "background-networking",
    "component-update",
    "sync",
    "default-apps",
    "domain-reliability",
    "client-side-phishing-detection",
)
# What the reader has: colours, relative luminance and contrast as WCAG 2 defines them, of all letters on the page.
FAINT_LETTERS = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const found = parse(getComputedStyle(e).backgroundColor);
    if (found.length < 4 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
const faint = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const skip = ["SCRIPT", "STYLE"].includes(element.tagName) || !element.checkVisibility();
  if (skip || !walker.currentNode.textContent.trim()) continue;
  const style = getComputedStyle(element), svg = element.namespaceURI.includes("svg");
  const [a, b] = [light(parse(svg ? style.fill : style.color)), light(behind(element))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) faint.push([walker.currentNode.textContent.trim(), (a + 0.05) / (b + 0.05)]);
}
return faint;
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = BROWSER
    flags = [
        "headless=new",
        "disable-gpu",
        "no-first-run",
        "window-size=1200,900",
        "disable-dev-shm-usage",
        "force-prefers-reduced-motion",
    ]
    flags += [f"disable-{name}" for name in QUIET] + [f"user-data-dir={tmp_path_factory.mktemp('profile')}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("no-sandbox")  # which Chromium refuses to root
    for flag in flags:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = selenium.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


def png(path: Path) -> Path:
    """The smallest picture: one white dot."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"\0\xff")), (b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts))
    return path


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of all blocks, with names that would do harm if they were markup."""
    folder = tmp_path_factory.mktemp("blocks")
    page = Page("All <blocks>", "A page for tests")
    page.section("Tables", "Sort them")
    page.cards([("best", "0.41", "of all"), ("runs", "3", "")])
    page.text("</script><script>document.title = 'harmed'</script><img src=x onerror=\"document.title='harmed'\">")
    rows: list[Any] = [
        ["[/x] <b>", 10, "item 10", Cell("0.3", 0.3, "good")],
        ["b", math.nan, "item 9", Cell("0.1", 0.1, "bad")],
        ["a", 9, "Item 100", Cell("0.9", 0.9, "best")],
        ["c", -1.5, "", Cell("0.2", 0.2, "faint")],
    ]
    page.table(["name", "number", "text", "marked"], rows, "What there is")
    page.table(["first", *(f"column {n}" for n in range(30))], [["row", *range(1000, 31000, 1000)]], "Wide")
    page.section("Charts")
    xs = [float(n) for n in range(1, 21)]
    curves = [
        Curve(f"line {n} <i>", xs, [x * (n + 1) for x in xs], [x * n for x in xs], [x * (n + 2) for x in xs]) for n in range(6)
    ]
    page.curves(curves, "epoch", "loss", "Six lines")
    page.bars(["one", "two"], [1, -2], [0.5, -3], [1.5, -1], "Bars")
    page.picture(png(folder / "dot.png"), "a dot", "One dot")
    page.section("Folded")
    with page.details("What is folded"):
        page.text("words within")
        page.code("srns train 'a b.csv'", "A command")
    page.write(folder / "page.html")
    return folder / "page.html"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of three small runs."""
    folder = tmp_path_factory.mktemp("report")
    data = folder / "clicks.csv"
    pairs = [(user, item) for user in range(40) for item in range(30) if (user * 7 + item * item) % 3 == 0]
    data.write_text("user_id,item_id,timestamp\n" + "".join(f"u{u},i{i},{u * i % 17}\n" for u, i in pairs))
    for name, fields in {"srns": {}, "uniform": {"sampler": "uniform"}, "again": {"sampler": "uniform", "seed": 1}}.items():
        train_run(data, make_config({"dim": 4, "epochs": 4, "engine": "plain", "threads": 1, **fields}), out=folder / name)
    make_page(make_report([folder])).write(folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an audit of small data, with answers."""
    folder = tmp_path_factory.mktemp("audit")
    pairs = [(user, item) for user in range(60) for item in range(30) if (user * 7 + item * item) % 3 == 0]
    (folder / "clicks.csv").write_text("user,item\n" + "".join(f"u{u},i{i}\n" for u, i in pairs))
    asked = [(user, item) for user in range(60) for item in range(30) if (user * 7 + item * item) % 3 == 1]
    (folder / "answers.csv").write_text("user,item,liked\n" + "".join(f"u{u},i{i},{(u + i) % 2}\n" for u, i in asked))
    data, told = str(folder / "clicks.csv"), str(folder / "answers.csv")
    settings = {"dim": 4, "epochs": 4, "negatives": 4, "engine": "plain"}
    each = contestants(Plan(data, ("uniform", "srns-difficulty", "srns-variance"), (5.0,), settings=settings))
    runs = {one.name: [trial(data, dict(one.values), 0.2, seed, told, "") for seed in range(2)] for one in each}
    audit_page(conclude(each, runs), "clicks.csv", "srns audit clicks.csv").write(folder / "audit.html")
    return folder / "audit.html"


def opened(driver: Any, path: Path, width: int = 1200) -> Any:
    for name in ("browser", "performance"):
        driver.get_log(name)  # what was said before
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    driver.get(path.as_uri())
    return driver


def find(driver: Any, selector: str) -> Any:
    return driver.find_element("css selector", selector)


def those(driver: Any, selector: str, condition: str) -> list[str]:
    """The elements that a condition in JavaScript holds for."""
    every = f"[...document.querySelectorAll({json.dumps(selector)})]"
    found = driver.execute_script(f"return {every}.filter((each) => {condition}).map((each) => each.outerHTML.slice(0, 200))")
    return list(found)


def column(driver: Any, number: int) -> list[str]:
    cells = driver.execute_script(
        "return [...document.querySelector('.sortable').tBodies[0].rows].map((row) => row.cells[arguments[0]].textContent)",
        number,
    )
    return [str(cell) for cell in cells]


def press(driver: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def focused(driver: Any) -> Any:
    return driver.switch_to.active_element


@pytest.mark.parametrize("name", ["blocks", "report", "audit"])
def test_a_page_opens_from_disk_without_errors_and_asks_for_nothing(
    driver: Any, name: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    opened(driver, path)
    driver.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    requests = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    asked = {each["request"]["url"] for each in requests if not each["documentURL"].startswith("chrome")}  # not its own pages
    assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
    assert driver.title != "harmed"
    assert driver.execute_script("return document.querySelectorAll('b, i, main script:not([type]), img[src=x]').length") == 0


def test_rows_are_sorted_by_click(driver: Any, blocks: Path) -> None:
    opened(driver, blocks)
    heads = driver.find_elements("css selector", "table.sortable thead th")[:4]
    assert [head.get_attribute("aria-sort") for head in heads] == ["none"] * 4
    heads[1].find_element("css selector", "button").click()
    assert column(driver, 0) == ["c", "a", "[/x] <b>", "b"]  # what is no number is last
    assert [head.get_attribute("aria-sort") for head in heads] == ["none", "ascending", "none", "none"]
    heads[1].find_element("css selector", "button").click()
    assert column(driver, 0) == ["[/x] <b>", "a", "c", "b"]
    assert heads[1].get_attribute("aria-sort") == "descending"
    heads[2].find_element("css selector", "button").click()
    assert column(driver, 2) == ["item 9", "item 10", "Item 100", ""]
    assert [head.get_attribute("aria-sort") for head in heads] == ["none", "none", "ascending", "none"]
    heads[3].find_element("css selector", "button").click()
    assert column(driver, 3) == ["0.1", "0.2", "0.3", "0.9"]


def test_rows_are_sorted_by_keyboard(driver: Any, blocks: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(driver, blocks)
    for _ in range(60):
        press(driver, Keys.TAB)
        if focused(driver).text.startswith("number"):
            break
    outline = driver.execute_script(
        "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]"
    )
    assert outline == ["solid", "3px"]
    press(driver, Keys.ENTER)
    assert column(driver, 0) == ["c", "a", "[/x] <b>", "b"]
    press(driver, Keys.SPACE)
    assert column(driver, 0) == ["[/x] <b>", "a", "c", "b"]
    assert focused(driver).text.startswith("number")  # where it was


def test_the_first_stop_skips_to_the_content(driver: Any, blocks: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(driver, blocks)
    press(driver, Keys.TAB)
    assert focused(driver).text == "Skip to the content"
    assert focused(driver).rect["x"] >= 0
    press(driver, Keys.ENTER)
    assert focused(driver).get_attribute("id") == "main"


def visible_lines(driver: Any) -> list[int]:
    found = driver.execute_script(
        "return [...document.querySelectorAll('g.curve')].map((g) => getComputedStyle(g).display !== 'none')"
    )
    return [n for n, shown in enumerate(found) if shown]


def test_lines_are_toggled_by_mouse_and_keyboard(driver: Any, blocks: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(driver, blocks)
    buttons = driver.find_elements("css selector", ".legend button")
    assert [button.text for button in buttons[:6]] == [f"line {n} <i>" for n in range(6)]
    assert visible_lines(driver) == [0, 1, 2, 3, 4, 5]
    buttons[1].click()
    assert visible_lines(driver) == [0, 2, 3, 4, 5]
    assert [button.get_attribute("aria-pressed") for button in buttons[:3]] == ["true", "false", "true"]
    press(driver, Keys.TAB, Keys.SPACE)
    assert visible_lines(driver) == [0, 3, 4, 5]
    press(driver, Keys.ENTER)
    assert visible_lines(driver) == [0, 2, 3, 4, 5]
    buttons[7].click()
    assert buttons[7].text == "hide all"
    assert visible_lines(driver) == []
    buttons[6].click()
    assert visible_lines(driver) == [0, 1, 2, 3, 4, 5]


def test_values_are_read_off_by_pointer_and_by_arrow_keys(driver: Any, blocks: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    opened(driver, blocks)
    frame, readout = find(driver, ".frame"), find(driver, ".readout")
    assert frame.get_attribute("role") == "slider"
    assert not readout.is_displayed()
    ActionChains(driver).move_to_element(frame).perform()  # the middle of 1 to 20 is 10 or 11
    assert readout.is_displayed()
    first, *rest = readout.text.split("\n")
    x = int(first.removeprefix("epoch "))
    assert x in (10, 11)
    assert [line for line in rest if line.startswith("line")] == [f"line {n} <i>" for n in reversed(range(6))]
    assert f"{x * 6} ({x * 5} to {x * 7})" in rest
    ActionChains(driver).move_to_element(find(driver, "h1")).perform()
    assert not readout.is_displayed()
    driver.execute_script("arguments[0].focus()", frame)
    press(driver, Keys.HOME)
    assert frame.get_attribute("aria-valuetext").startswith("epoch 1, line 5 <i> 6, line 4 <i> 5")
    press(driver, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert frame.get_attribute("aria-valuetext").startswith("epoch 3, line 5 <i> 18")
    assert float(frame.get_attribute("aria-valuenow")) == 3
    press(driver, Keys.END, Keys.ARROW_LEFT)
    assert frame.get_attribute("aria-valuetext").startswith("epoch 19")
    press(driver, Keys.ESCAPE)
    assert not readout.is_displayed()


def background(driver: Any) -> str:
    return str(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))


def background_anew(driver: Any) -> str:
    driver.refresh()
    return background(driver)


def test_colours_follow_the_system_until_they_are_chosen(driver: Any, blocks: Path) -> None:
    white, dark = "rgb(255, 255, 255)", "rgb(22, 24, 29)"
    for scheme, expected, other in (("light", white, dark), ("dark", dark, white)):
        opened(driver, blocks)
        driver.execute_script("localStorage.clear()")
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        driver.refresh()
        button = find(driver, "#theme")
        assert background(driver) == expected
        assert button.get_attribute("aria-pressed") == str(expected == dark).lower()
        button.click()
        assert background(driver) == other
        assert button.get_attribute("aria-pressed") == str(other == dark).lower()
        until_remembered = time.monotonic() + 10  # Chromium keeps it aside; a page that comes too soon does not have it yet
        while background_anew(driver) != other:
            assert time.monotonic() < until_remembered, "the colours that were chosen are not remembered"
        driver.execute_script("localStorage.clear()")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["blocks", "report", "audit"])
def test_letters_stand_out_from_what_is_behind_them(
    driver: Any, name: str, scheme: str, request: pytest.FixtureRequest
) -> None:
    opened(driver, request.getfixturevalue(name))
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    driver.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert driver.execute_script(FAINT_LETTERS) == []


@pytest.mark.parametrize("name", ["blocks", "report", "audit"])
def test_all_is_there_in_print(driver: Any, name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    opened(driver, path, width=688)  # A4 within its margins
    driver.execute_script("document.querySelector('.legend button').click()")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    all_kinds = "main :is(p, td, th, pre, figcaption, h3, img, g.curve)"
    assert those(driver, all_kinds, "!each.closest('.numbers') && !each.checkVisibility()") == []
    assert those(driver, ".scroll", "each.scrollWidth > 690") == []
    assert those(driver, "*", "getComputedStyle(each).boxShadow !== 'none'") == []
    assert not find(driver, "nav").is_displayed()
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    paper = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
    assert paper.startswith(b"%PDF")
    opening = "return [...document.querySelectorAll('details:not(.numbers)')].map((each) => each.open)"
    assert not any(driver.execute_script(opening))  # folded again
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert all(driver.execute_script(opening))
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert not any(driver.execute_script(opening))


@pytest.mark.parametrize("name", ["blocks", "report", "audit"])
def test_everything_has_a_name_for_those_who_do_not_see_it(driver: Any, name: str, request: pytest.FixtureRequest) -> None:
    opened(driver, request.getfixturevalue(name))
    driver.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "link", "slider", "image", "img", "table", "region", "heading", "columnheader", "rowheader", "textbox"}
    seen = [node for node in nodes if not node.get("ignored") and node.get("role", {}).get("value") in roles]
    assert {node["role"]["value"] for node in seen} >= {
        "button",
        "link",
        "slider",
        "table",
        "heading",
        "columnheader",
        "rowheader",
    }
    nameless = [node for node in seen if not node.get("name", {}).get("value") and node["role"]["value"] != "table"]
    assert nameless == []
    landmarks = {node["role"]["value"] for node in nodes if not node.get("ignored")}
    assert {"main", "navigation", "banner"} <= landmarks
    assert driver.execute_script("return document.querySelectorAll('th:not([scope])').length") == 0
    assert driver.execute_script("return document.querySelectorAll('img:not([alt])').length") == 0
    levels = driver.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map((each) => Number(each.tagName[1]))"
    )
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    ids = driver.execute_script("return [...document.querySelectorAll('[id]')].map((each) => each.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", ["blocks", "report", "audit"])
def test_a_telephone_scrolls_down_alone(driver: Any, name: str, request: pytest.FixtureRequest) -> None:
    opened(driver, request.getfixturevalue(name), width=360)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
    small = driver.execute_script(
        "return [...document.querySelectorAll('text')].map((each) => parseFloat(getComputedStyle(each).fontSize))"
    )
    assert min(small) >= 11
    fixed = "const row = document.querySelectorAll('table.sortable')[1].rows[1]; row.closest('.scroll').scrollLeft = 300;"
    assert driver.execute_script(f"{fixed} return row.cells[0].getBoundingClientRect().left") >= 0  # the first column stays


def test_what_matters_of_a_wide_table_is_seen_without_scrolling(driver: Any, report: Path) -> None:
    opened(driver, report)
    head = "[...document.querySelector('table.sortable.wide').tHead.rows[0].cells]"
    right = driver.execute_script(f"return {head}.map((each) => [each.textContent, each.getBoundingClientRect().right])")
    seen = [name.split(" of ")[0] for name, at in right if at <= driver.execute_script("return innerWidth") - 20]
    assert {"test ndcg@10", "difference", "95% interval", "verdict", "p"} <= set(seen)
    assert len(seen) == len(right)
    assert driver.execute_script("return document.querySelector('main').getBoundingClientRect().width") > 1100


def test_navigation_is_beside_the_content_where_both_have_room(driver: Any, report: Path) -> None:
    for width, beside in ((1200, False), (1600, True)):
        opened(driver, report, width=width)
        navigation, main = find(driver, "nav").rect, find(driver, "main").rect
        assert (navigation["x"] + navigation["width"] <= main["x"]) == beside
        assert main["width"] > 1100


def test_a_long_cell_is_two_lines_until_it_is_focused(driver: Any, tmp_path: Path) -> None:
    page, long = Page("Settings"), "learning_rate 0.001, l2 0.001, dim 32, " * 8
    page.section("Settings")
    page.table(["name", *"abcdefgh"], [["x", *["1"] * 7, long], ["y", *["1"] * 7, "2"]])
    page.write(tmp_path / "page.html")
    opened(driver, tmp_path / "page.html")
    plain, cut = find(driver, "tbody tr:last-child").rect["height"], find(driver, "tbody tr").rect["height"]
    assert cut < 2 * plain
    driver.execute_script("document.querySelector('.clip').focus()")
    assert find(driver, "tbody tr").rect["height"] > 3 * plain
    driver.execute_script("document.activeElement.blur()")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert those(driver, ".clip", "each.scrollHeight > each.clientHeight + 1") == []
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_figures_are_as_wide_as_their_png_where_the_page_has_room(driver: Any, tmp_path: Path) -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="396pt" height="198pt" viewBox="0 0 396 198"></svg>'
    (tmp_path / "plot.svg").write_text(svg)
    page = Page("Figure")
    page.section("Figure")
    page.picture(tmp_path / "plot.svg", "a plot")
    page.write(tmp_path / "page.html")
    for width, expected in ((1200, 1100), (400, None)):
        opened(driver, tmp_path / "page.html", width=width)
        drawn = find(driver, ".picture img").rect
        assert drawn["width"] == (expected or find(driver, "main").rect["width"])
        assert drawn["height"] == pytest.approx(drawn["width"] / 2, abs=1)


def test_without_a_script_all_is_there_and_nothing_pretends(driver: Any, blocks: Path) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(driver, blocks)
        assert find(driver, "g.curve path").is_displayed()
        assert not find(driver, "#theme").is_displayed()
        assert driver.find_elements("css selector", "thead button") == []
        assert all(not button.is_enabled() for button in driver.find_elements("css selector", ".legend button"))
        find(driver, ".numbers summary").click()
        table = find(driver, ".numbers table")
        assert table.is_displayed()
        assert table.find_elements("css selector", "tbody tr")[2].text.split()[:4] == ["3", "3", "0", "6"]
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_commands_are_copied(driver: Any, blocks: Path) -> None:
    opened(driver, blocks)
    driver.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    button = find(driver, ".copy")
    driver.execute_script(
        "window.copied = null; document.addEventListener('copy', () => { window.copied = String(getSelection()); })"
    )
    driver.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as where it is not allowed
    button.click()
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 10).until(lambda _: button.text in ("Copied", "Marked"))
    assert driver.execute_script("return String(getSelection())") == "srns train 'a b.csv'"


def test_an_audit_says_what_to_use_first_and_what_its_words_mean(driver: Any, audit: Path) -> None:
    opened(driver, audit)
    title, answer = find(driver, "h1"), find(driver, "main section ul")
    assert title.text == "Audit of negatives: clicks.csv"
    assert answer.rect["y"] + answer.rect["height"] < 900, "on the first screen"
    words = find(driver, "main section details")
    assert "Hidden positive" not in words.text
    words.find_element("css selector", "summary").click()
    assert {"Hidden positive", "ndcg@10", "Sampler uniform"} <= {line.split(":")[0] for line in words.text.split("\n")}
    bars = driver.find_elements("css selector", "table.bar-chart tbody tr")
    assert [bar.text.split("\n")[0].split()[0] for bar in bars] == ["uniform", "srns-difficulty", "srns-variance"]
