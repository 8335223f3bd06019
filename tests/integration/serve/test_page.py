"""The page of a service in a real browser: images are given, answers seen."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.samples.catalogue import PHOTOGRAPHS, SCENES_MODEL_PATH
from tests.integration.report.chromium import Chromium
from tests.integration.serve.service import Service

PIPELINE = f"""
import headrace as hr

class Scenes(hr.Module):
    model = {str(SCENES_MODEL_PATH)!r}
    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context):
        self.scenes = context.open_model()

    def preprocess(self, image):
        return hr.images.normalize(image)

    def process(self, batch):
        return self.scenes(batch).argmax(axis=1).tolist()

class Lengths(hr.Module):
    input = hr.TextInput()

    def process(self, batch):
        return [len(one) for one in batch]

class Sums(hr.Module):
    input = hr.ArrayInput(dtype="float32", shape=(None,))

    def process(self, batch):
        return [float(one.sum()) for one in batch]

pipeline = hr.Pipeline(source=hr.items([]), modules={{"scenes": Scenes(), "lengths": Lengths()}})
images = hr.Pipeline(source=hr.items([]), module=Scenes())
arrays = hr.Pipeline(source=hr.items([]), module=Sums())
"""
#: All answers on the page once none is on its way, newest first.
ANSWERS = """new Promise(done => {
  const look = () => {
    const found = [...document.querySelectorAll('#answers section')];
    const comes = one => !one.dataset.state || [...one.querySelectorAll('img')].some(image => !image.complete);
    if (found.length < %d || found.some(comes)) return setTimeout(look, 20);
    done(found.map(one => ({
      state: one.dataset.state, name: one.querySelector('h2').textContent, said: one.querySelector('p').textContent,
      answer: (one.querySelector('pre') || {}).textContent, retry: (one.querySelector('.retry') || {}).textContent,
      stages: [...one.querySelectorAll('tbody tr')].map(row => [...row.cells].slice(0, 3).map(cell => cell.textContent)),
      drawn: one.querySelector('img') ? one.querySelector('img').naturalWidth : 0,
    })));
  };
  look();
})"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with pipelines."""
    (tmp_path / "jobs.py").write_text(PIPELINE)
    return tmp_path


@pytest.fixture
def service(folder: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """One of them, served."""
    service = Service(folder, *getattr(request, "param", ["jobs.py:images"]))
    service.wait_until_ready()
    yield service
    service.process.kill()
    service.process.communicate()


def drop(browser: Chromium, files: list[Path]) -> None:
    """Drop files on the page as a person does."""
    data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
    for step in ("dragEnter", "dragOver", "drop"):
        browser.call("Input.dispatchDragEvent", type=step, x=400, y=300, data=data)


def test_images_are_dropped_and_their_answers_seen(browser: Chromium, service: Service, pictures: Path) -> None:
    """Each with its picture, the stages' times and its batch; nothing is loaded from elsewhere, and nothing complains."""
    expected = [service.ask("/v1/jobs", one.path.read_bytes())[1]["result"] for one in PHOTOGRAPHS[:2]]
    browser.open(service.url + "/")
    drop(browser, [one.path for one in PHOTOGRAPHS[:2]])
    answers = browser.evaluate(ANSWERS % 2)
    assert browser.complaints == []
    assert [json.loads(one["answer"]) for one in reversed(answers)] == expected
    for one in answers:
        assert (one["state"], one["drawn"] > 0) == ("ok", True)
        assert "200 in" in one["said"]
        assert "batch of" in one["said"]
        stages = [row[0] for row in one["stages"]]
        assert stages[-2:] == ["waiting, handing on", "total"]
        assert {"decode", "process"} <= set(stages)
    for width in (1280, 360):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        browser.screenshot(pictures / f"serve-page-{width}.png")


def test_what_goes_wrong_is_told(browser: Chromium, service: Service, tmp_path: Path, pictures: Path) -> None:
    """What is no image is refused with its code and reason, and a service that has gone is named."""
    broken = tmp_path / "no image <b>.jpg"
    broken.write_bytes(b"no image")
    browser.open(service.url + "/")
    drop(browser, [broken])
    answer = browser.evaluate(ANSWERS % 1)[0]
    assert (answer["state"], answer["name"]) == ("failed", "no image <b>.jpg")
    assert "422" in answer["said"]
    assert "decode." in answer["said"]
    for width in (390, 1280):  # the reason is read without moving it
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        assert (
            browser.evaluate("(one => one.scrollWidth - one.clientWidth)(document.querySelector('section pre'))") == 0
        )
        browser.screenshot(pictures / f"serve-page-failed-{width}.png")
    service.end()
    drop(browser, [PHOTOGRAPHS[0].path])
    assert "no answer" in browser.evaluate(ANSWERS % 2)[0]["said"]


@pytest.mark.parametrize("service", [["jobs.py:images", "--set", "serve.max_requests=1"]], indirect=True)
def test_a_busy_service_says_when_to_try_again(browser: Chromium, service: Service) -> None:
    """Of many images at once some are refused, with the time after which to try again."""
    browser.open(service.url + "/")
    drop(browser, [PHOTOGRAPHS[0].path] * 24)
    refused = [one for one in browser.evaluate(ANSWERS % 24) if one["state"] == "failed"]
    assert refused
    assert all(("serve.busy" in one["said"], one["retry"]) == (True, "Try again in 1 s.") for one in refused)


@pytest.mark.parametrize("service", [["jobs.py:pipeline"]], indirect=True)
def test_text_is_typed_with_the_keyboard_alone(browser: Chromium, service: Service) -> None:
    """Among several tasks one is chosen, text typed and sent; no pointer is needed."""
    browser.open(service.url + "/")
    browser.evaluate("find('task').focus()")
    press(browser, "ArrowDown")
    for _ in range(2):  # over the choice of files
        press(browser, "Tab")
    browser.call("Input.insertText", text="seven..")
    press(browser, "Tab")
    press(browser, "Enter")
    answer = browser.evaluate(ANSWERS % 1)[0]
    assert (answer["state"], answer["answer"]) == ("ok", "7")


@pytest.mark.parametrize("service", [["jobs.py:arrays"]], indirect=True)
def test_an_array_is_given_as_json(browser: Chromium, service: Service) -> None:
    """What is no JSON is told at once; an array is answered."""
    browser.open(service.url + "/")
    browser.evaluate("find('text').value = '[1, 2'; find('ask').requestSubmit()")
    assert "no JSON" in browser.evaluate("find('notice').textContent")
    browser.evaluate("find('text').value = '[1, 2, 3.5]'; find('ask').requestSubmit()")
    answer = browser.evaluate(ANSWERS % 1)[0]
    assert answer["state"] == "ok", answer
    assert "6.5" in answer["answer"]


@pytest.fixture
def guarded(folder: Path) -> Iterator[Service]:
    """A service that wants a token."""
    (folder / "token").write_text("open-sesame")
    service = Service(folder, "jobs.py:images", "--token-file", "token")
    service.wait_until_ready()
    yield service
    service.process.kill()
    service.process.communicate()


def test_a_token_is_asked_for(browser: Chromium, guarded: Service) -> None:
    """The page comes without one and tells nothing; with it the service can be used."""
    browser.open(guarded.url + "/")
    assert "http.token" in browser.evaluate("find('notice').textContent")
    browser.evaluate("find('token').value = 'open-sesame'; find('enter').click()")
    browser.evaluate(
        "new Promise(done => { const look = () => find('notice').hidden ? done(true) : setTimeout(look, 20); look(); })"
    )
    drop(browser, [PHOTOGRAPHS[0].path])
    assert browser.evaluate(ANSWERS % 1)[0]["state"] == "ok"


def press(browser: Chromium, key: str) -> None:
    """Press one key."""
    codes = {"Tab": 9, "Enter": 13, "ArrowDown": 40}
    text = {"text": "\r"} if key == "Enter" else {}
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=codes[key], **text)
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=codes[key])
