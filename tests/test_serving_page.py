"""The page of the service in a real browser: by mouse, by keyboard, on a telephone, with names that would like to be markup."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from srns.presets import make_config
from srns.recommender import Recommender
from srns.runs import train_run

selenium = pytest.importorskip("selenium.webdriver")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not BROWSER or not DRIVER, reason="neither Chromium and its driver nor Chrome's are installed here"
)
ODD = "a/b <i>é</i> #1 & 50%"
EVIL = "<img src=x onerror=\"document.title='harmed'\"><b>film</b>"
USERS = [ODD, *(f"u{n:02d}" for n in range(40))]
ITEMS = [EVIL, *(f"i{n:02d}" for n in range(45))]
# Relative luminance and contrast as WCAG 2 defines them, of all letters on the page.
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
return [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && [...e.childNodes].some(
  (n) => n.nodeType === 3 && n.textContent.trim())).map((e) => {
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
  return [e.textContent.trim().slice(0, 40), (a + 0.05) / (b + 0.05)];
}).filter(([, contrast]) => contrast < 4.5);
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    chance = random.Random(0)
    pairs = [(user, item) for user in USERS for item in chance.sample(ITEMS, 40 if user == "u00" else chance.randint(5, 15))]
    with (folder / "clicks.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("user_id", "item_id", "timestamp"), *((*pair, chance.randrange(9999)) for pair in pairs)])
    with (folder / "items.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("item_id", "title", "year"), *((item, f"Title of {item}", 1990) for item in ITEMS)])
    fields = {"dim": 4, "epochs": 3, "engine": "plain", "threads": 1}
    train_run(folder / "clicks.csv", make_config(fields), out=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def url(serve: Callable[..., Any], run: Path) -> str:
    return str(serve(run, "--items", run.parent / "items.csv").url)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = BROWSER
    quiet = ("background-networking", "component-update", "sync", "default-apps", "domain-reliability", "gpu", "dev-shm-usage")
    flags = ["headless=new", "no-first-run", "window-size=1200,900", *(f"disable-{name}" for name in quiet)]
    flags.append(f"user-data-dir={tmp_path_factory.mktemp('profile')}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("no-sandbox")  # which Chromium refuses to root
    for flag in flags:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = selenium.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


def opened(driver: Any, address: str, width: int = 1200) -> None:
    driver.get("about:blank")
    for name in ("browser", "performance"):
        driver.get_log(name)  # what was said before
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    driver.get(address)


def wait(driver: Any, script: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 20, 0.05).until(lambda _: driver.execute_script(f"return {script}"))


def shown_user(driver: Any, user: str) -> None:
    wait(driver, f"document.getElementById('status').textContent.endsWith({json.dumps(f'for user {user}.')})")


def texts(driver: Any, selector: str) -> list[str]:
    found = driver.execute_script(f"return [...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")
    return [str(text) for text in found]


def press(driver: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def at(driver: Any, name: str) -> Any:
    return driver.find_element("id", name)


def test_a_link_to_a_user_shows_what_they_had_what_is_recommended_and_why(driver: Any, url: str, run: Path) -> None:
    opened(driver, f"{url}/#user={quote(ODD, safe='')}")
    shown_user(driver, ODD)
    model = Recommender.load(run)
    ids, _ = model.recommend(ODD, 10)
    assert texts(driver, "#recommended > li .title") == [f"Title of {item}" for item in ids]
    why, _ = model.explain(ODD, ids[0], 3)
    first = texts(driver, "#recommended > li:first-child .why li span:first-child")
    assert first == [f"Title of {item}" for item in why][: len(first)] != []
    index = model.split_.train.user_ids.index(ODD)
    had = set(model.split_.train.item_ids.take(model.seen_.items_of(index)).to_list())
    assert set(texts(driver, "#history > li .title")) == {f"Title of {item}" for item in had}
    assert "the latest first" in at(driver, "history-note").text
    assert driver.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert {address for address in asked if not address.startswith((url, "data:", "chrome", "about:"))} == set()
    assert driver.title != "harmed"
    assert driver.execute_script("return document.querySelectorAll('main b, main i, main img').length") == 0


def test_by_keyboard_alone(driver: Any, url: str) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(driver, url)
    wait(driver, "document.getElementById('facts').textContent !== ''")
    press(driver, Keys.TAB)
    assert driver.switch_to.active_element.text == "Skip to the content"
    press(driver, Keys.TAB)
    assert driver.switch_to.active_element.get_attribute("id") == "user"
    press(driver, "u1")
    wait(driver, "document.querySelectorAll('#found [role=option]').length === 10")
    press(driver, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert at(driver, "user").get_attribute("aria-activedescendant") == "found-1"
    press(driver, Keys.ENTER)
    shown_user(driver, "u11")
    assert driver.current_url.endswith("#user=u11")
    assert driver.switch_to.active_element.get_attribute("id") == "recommended-title"
    press(driver, Keys.TAB)
    item = driver.switch_to.active_element
    name = item.text
    press(driver, Keys.ENTER)
    wait(driver, "document.querySelectorAll('#similar-items li').length === 10")
    assert at(driver, "similar-title").text == f"Like {name}"
    press(driver, Keys.ESCAPE)
    assert not at(driver, "similar").is_displayed()
    assert driver.switch_to.active_element == item  # where it was
    assert driver.get_log("browser") == []


def test_by_mouse(driver: Any, url: str) -> None:
    opened(driver, url)
    wait(driver, "document.getElementById('facts').textContent !== ''")
    at(driver, "random").click()
    wait(driver, "!document.getElementById('result').hidden")
    user = at(driver, "user").get_attribute("value")
    assert user in USERS
    driver.find_element("css selector", "#history .title").click()
    wait(driver, "document.querySelectorAll('#similar-items li').length === 10")
    driver.find_element("css selector", "#similar-items .title").click()  # on to what is like that
    wait(driver, "document.querySelectorAll('#similar-items li').length === 10")
    at(driver, "close").click()
    field = at(driver, "user")
    field.clear()
    field.send_keys("u0")
    wait(driver, "document.querySelectorAll('#found [role=option]').length === 10")
    driver.find_element("css selector", "#found li").click()
    shown_user(driver, "u00")
    assert len(texts(driver, "#history > li")) == 25
    at(driver, "more").click()
    wait(driver, "document.querySelectorAll('#history > li').length === 40")
    assert not at(driver, "more").is_displayed()
    driver.back()
    shown_user(driver, user)


def test_integer_ids_beyond_what_a_float_can_hold_and_short_lists(
    driver: Any, serve: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("integers")
    users, items = [2**53 + 1 + 2 * n for n in range(15)], [-(2**60) - 1 - 2 * n for n in range(20)]
    chance = random.Random(1)
    pairs = [(user, item) for user in users for item in chance.sample(items, 5)]
    with (folder / "clicks.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("user_id", "item_id"), *pairs])
    train_run(folder / "clicks.csv", make_config({"dim": 4, "epochs": 2, "engine": "plain", "threads": 1}), out=folder / "run")
    opened(driver, serve(folder / "run", "--max-k", "3").url)
    wait(driver, "document.getElementById('facts').textContent !== ''")
    at(driver, "user").send_keys("9")
    wait(driver, "document.querySelectorAll('#found [role=option]').length === 12")
    assert texts(driver, "#found [role=option]") == [str(user) for user in users[:12]]
    driver.find_element("css selector", "#found li:nth-child(2)").click()
    shown_user(driver, str(users[1]))
    model = Recommender.load(folder / "run")
    assert texts(driver, "#recommended .title") == [str(item) for item in model.recommend(users[1], 3)[0]]
    assert set(texts(driver, "#history .title")) <= {str(item) for item in items}
    driver.find_element("css selector", "#recommended .title").click()
    wait(driver, "document.querySelectorAll('#similar-items li').length === 3")
    assert set(texts(driver, "#similar-items .title")) <= {str(item) for item in items}
    at(driver, "close").click()
    at(driver, "random").click()
    wait(driver, "document.getElementById('status').textContent.endsWith(`${document.getElementById('user').value}.`)")
    assert int(at(driver, "user").get_attribute("value")) in users
    assert driver.get_log("browser") == []


def test_somebody_unknown(driver: Any, url: str) -> None:
    opened(driver, f"{url}/#user=nobody")
    wait(driver, "document.querySelector('#status.wrong') !== null")
    assert "'nobody' is not among the users" in at(driver, "status").text
    assert not at(driver, "result").is_displayed()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_telephone_all_is_there_and_can_be_read(driver: Any, url: str, scheme: str) -> None:
    opened(driver, f"{url}/#user=u05", width=360)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    shown_user(driver, "u05")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
    assert driver.execute_script(FAINT_LETTERS) == []
    driver.find_element("css selector", "#recommended .title").click()
    wait(driver, "document.querySelectorAll('#similar-items li').length === 10")
    assert driver.execute_script("return document.getElementById('similar').getBoundingClientRect().right") <= 360
    assert driver.execute_script(FAINT_LETTERS) == []


def test_everything_has_a_name_for_those_who_do_not_see_it(driver: Any, url: str) -> None:
    opened(driver, f"{url}/#user=u05")
    shown_user(driver, "u05")
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen = [node for node in nodes if not node.get("ignored")]
    named = [node for node in seen if node["role"]["value"] in ("button", "link", "combobox", "heading", "region")]
    assert [node for node in named if not node.get("name", {}).get("value")] == []
    assert {"main", "banner", "search", "contentinfo", "status", "combobox"} <= {node["role"]["value"] for node in seen}
    levels = driver.execute_script("return [...document.querySelectorAll('main h2, h1')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert set(levels[1:]) == {2}


def test_the_description_of_the_interface(driver: Any, url: str) -> None:
    opened(driver, f"{url}/docs")
    assert "GET /users/{user}/recommendations" in texts(driver, "h2")
    assert driver.get_log("browser") == []
    assert texts(driver, "#s1 table:first-of-type tbody th")[:2] == ["user", "k"]
