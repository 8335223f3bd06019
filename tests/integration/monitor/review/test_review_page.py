"""The page of a review in a real browser, over answers that a real run kept: looked at, corrected, taken back."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.watch_review import find_places
from headrace.monitor.review.catching import ReviewCatcher, ReviewSettings
from headrace.monitor.review.page.server import ReviewServer
from headrace.monitor.review.reviewing import Review
from headrace.monitor.review.store import open_folder
from headrace.samples.catalogue import PHOTOGRAPHS, SCENES_MODEL_PATH

#: What the page says once nothing is under way, and its pictures have come.
PAGE = """new Promise(done => {
  const come = () => [...document.querySelectorAll('.item img')].filter(one => one.complete).length;
  const comes = () => come() < shown().filter(one => one.file).length;
  const look = () => busy || !state || comes() ? setTimeout(look, 20) : done({
    names: [...document.querySelectorAll('.item h2')].map(one => one.textContent),
    drawn: [...document.querySelectorAll('.item img')].filter(one => one.naturalWidth > 0).length,
    boxes: [...document.querySelectorAll('.box')].map(one => one.textContent),
    progress: find('progress').textContent, estimate: find('estimate').textContent,
    notice: find('notice').hidden ? '' : find('notice').textContent,
    marked: document.querySelectorAll('.marked').length,
    typing: !find('correct').hidden,
  });
  setTimeout(look, 100);
})"""


class Scenes(hr.Module):
    """Scores of scenes, as the model gives them."""

    model = SCENES_MODEL_PATH
    input = hr.ImageInput(short_side=256, crop=224)

    def load(self, context: Any) -> None:
        """Open the model."""
        self.scenes = context.open_model()

    def preprocess(self, image: Any) -> Any:
        """Normalize."""
        return hr.images.normalize(image)

    def process(self, batch: Any) -> list[Any]:
        """Return scores."""
        return list(self.scenes(batch))


class Faces(hr.Module):
    """Boxes, in pixels of the photograph."""

    input = hr.ImageInput(long_side=256)

    def process(self, batch: Any) -> list[Any]:
        """Return the same face for each."""
        return [[{"label": "<b>face</b>", "score": 0.75, "box": [10, 20, 110, 220]}] for _ in batch]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Review folders of two runs over the photographs, 22 and 11 answers."""
    made = {}
    for module, copies in ((Scenes(), 2), (Faces(), 1)):
        folder = open_folder(tmp_path_factory.mktemp("review") / "kept")
        source = hr.items([one.path for one in PHOTOGRAPHS] * copies)
        pipeline = hr.Pipeline(source, module=module, delivery=hr.collect())
        settings = ReviewSettings(folder=folder, max_bytes=1 << 30, max_days=30)
        catcher = ReviewCatcher(settings, find_places(pipeline, hr.Plan(), original=False))
        result = hr.run(pipeline, observers=[catcher], instruments=[catcher], watch=catcher.watch)
        assert result.counters.delivered == copies * len(PHOTOGRAPHS)
        made[type(module).__name__] = folder
    return made


@pytest.fixture
def server(folders: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[ReviewServer]:
    """The page of a new round."""
    folder = folders[getattr(request, "param", "Scenes")]
    (folder / "verdicts.jsonl").unlink(missing_ok=True)
    with ReviewServer(Review(folder, is_new=True), target=5) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def press(browser: Any, key: str) -> None:
    """Press and release a key."""
    text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
    for step in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=step, key=key, **(text if step == "keyDown" else {}))


def test_a_review_by_keys_alone(browser: Any, server: ReviewServer, pictures: Path) -> None:
    """Accept, correct by typing a class, cannot tell, undo: each is on disk, and the estimate follows."""
    browser.open(server.address)
    first = browser.evaluate(PAGE)
    assert browser.complaints == []
    assert (first["drawn"], len(first["names"]), first["progress"]) == (1, 1, "0 of 5 reviewed")
    assert first["estimate"] == "Accuracy in production: not known yet"
    press(browser, "a")
    second = browser.evaluate(PAGE)
    assert "100.0 %" in second["estimate"]
    press(browser, "w")
    assert browser.evaluate(PAGE)["typing"]
    browser.call("Input.insertText", text="teapot")
    press(browser, "Enter")
    third = browser.evaluate(PAGE)
    assert third["progress"] == "2 of 5 reviewed"
    said = {one.verdict: one.label for one in map(server.review.verdict_of, _drawn(server)[:2]) if one}
    assert said == {"correct": "", "wrong": "teapot"}
    press(browser, "u")
    assert browser.evaluate(PAGE)["progress"] == "3 of 5 reviewed"
    press(browser, "z")
    assert browser.evaluate(PAGE)["progress"] == "2 of 5 reviewed"
    assert Review(server.review.folder).estimate().overall.num_wrong == 1
    for width in (1280, 360):
        for dark in (False, True):
            browser.open(server.address.replace("/#", f"/?{width}{dark}#"), width=width, dark=dark)
            browser.evaluate(PAGE)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            browser.screenshot(pictures / f"review-{width}-{'dark' if dark else 'light'}.png")


def test_several_at_once(browser: Any, server: ReviewServer, pictures: Path) -> None:
    """Nine pictures; the third is marked wrong, the rest accepted; a skipped one comes back at the end."""
    browser.open(server.address)
    browser.evaluate(PAGE)
    press(browser, "s")
    assert browser.evaluate(PAGE)["progress"] == "0 of 5 reviewed"
    press(browser, "g")
    assert len(browser.evaluate(PAGE)["names"]) == 9
    press(browser, "3")
    assert browser.evaluate(PAGE)["marked"] == 1
    browser.screenshot(pictures / "review-several.png")
    press(browser, "Enter")
    assert browser.evaluate(PAGE)["progress"].startswith("9 reviewed: this round is done")
    verdicts = [server.review.verdict_of(item) for item in _drawn(server)[:10]]
    assert [one.verdict for one in verdicts if one] == ["skip", *["correct"] * 2, "wrong", *["correct"] * 6]
    assert server.review.list_open(99)[-1] == _drawn(server)[0]


@pytest.mark.parametrize("server", ["Faces"], indirect=True)
def test_boxes_are_drawn_where_they_are(browser: Any, server: ReviewServer, pictures: Path) -> None:
    """Over the picture, in its proportions; a name that looks like markup stays text."""
    browser.open(server.address)
    assert browser.evaluate(PAGE)["boxes"] == ["<b>face</b> 0.75"]
    item = server.review.find_item(server.review.list_open(1)[0])
    assert item is not None
    placed = browser.evaluate(
        "(() => { const a = document.querySelector('.box').getBoundingClientRect(),"
        " b = document.querySelector('.picture img').getBoundingClientRect();"
        " return [(a.left - b.left) / b.width, (a.width) / b.width]; })()"
    )
    assert placed == pytest.approx([item.boxes[0].x1, item.boxes[0].x2 - item.boxes[0].x1], abs=0.02)
    browser.screenshot(pictures / "review-boxes.png")


@pytest.mark.parametrize("server", ["Faces"], indirect=True)
def test_boxes_are_corrected(browser: Any, server: ReviewServer, pictures: Path) -> None:
    """A click takes one away, a drag draws one of the class that was typed; what is right is on disk."""
    browser.open(server.address)
    browser.evaluate(PAGE)
    name = server.review.list_open(1)[0]
    press(browser, "w")
    browser.call("Input.insertText", text="dog")
    box, picture = (
        browser.evaluate(
            f"(() => {{ const a = document.querySelector('{one}').getBoundingClientRect();"
            " return [a.left, a.top, a.width, a.height]; })()"
        )
        for one in (".box", ".picture img")
    )
    pull(browser, box[0] + box[2] / 2, box[1] + box[3] / 2)
    corner, size = (picture[0] + 0.6 * picture[2], picture[1] + 0.5 * picture[3]), (0.3 * picture[2], 0.4 * picture[3])
    pull(browser, *corner, *size)
    pull(browser, picture[0] + 0.4 * picture[2], picture[1] + 0.2 * picture[3])  # a click that slipped
    browser.screenshot(pictures / "review-correcting.png")
    browser.evaluate("document.activeElement.form || find('label').focus()")
    press(browser, "Enter")
    browser.evaluate(PAGE)
    said = server.review.verdict_of(name)
    assert said is not None
    assert said.verdict == "wrong"
    (drawn,) = said.boxes or ()
    assert drawn.name == "dog"
    assert [drawn.x1, drawn.y1, drawn.x2, drawn.y2] == pytest.approx([0.6, 0.5, 0.9, 0.9], abs=0.02)
    press(browser, "w")
    press(browser, "Enter")
    browser.evaluate(PAGE)
    assert [one.boxes for one in map(server.review.verdict_of, _drawn(server)[:2]) if one] == [said.boxes, None]


def pull(browser: Any, x: float, y: float, right: float = 0.0, down: float = 0.0) -> None:
    """Press the mouse, pull it, and let it go; without a way it is a click."""
    places = {"mousePressed": (x, y), "mouseMoved": (x + right, y + down), "mouseReleased": (x + right, y + down)}
    for kind, (across, along) in places.items():
        if kind != "mouseMoved" or right:
            browser.call(
                "Input.dispatchMouseEvent", type=kind, x=across, y=along, button="left", buttons=1, clickCount=1
            )


def test_a_page_without_its_token_shows_nothing(browser: Any, server: ReviewServer) -> None:
    """It says what is missing."""
    browser.open(server.address.partition("#")[0] + "?none")
    browser.evaluate("new Promise(done => setTimeout(done, 50))")
    assert "token is missing" in browser.evaluate("find('notice').textContent")


_BOX = {"name": "a", "score": None, "x1": 0.2, "y1": 0.2, "x2": 0.4, "y2": 0.4}


def _drawn(server: ReviewServer) -> list[str]:
    return [one.item for one in server.review.round.draws]


def _ask(server: ReviewServer, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content) if content[:1] == b"{" else {}


def test_strangers_are_refused(server: ReviewServer) -> None:
    """Without the token, with another site's name, with a path that leads out, with what are no verdicts."""
    token = f"Bearer {server.token}"
    assert _ask(server, "GET", "/state")[0] == 401
    assert _ask(server, "POST", "/verdicts", b"{}", Authorization="Bearer x")[0] == 401
    assert _ask(server, "GET", "/state", Host="evil.example", Authorization=token)[0] == 403
    assert _ask(server, "GET", "/", Host="evil.example:80")[0] == 403
    assert _ask(server, "GET", "/state", Authorization=token)[0] == 200
    for path in (
        "/files/../verdicts.jsonl",
        "/files/..%2f..%2fverdicts.jsonl/x",
        "/files/x/..%2f..%2f..%2fverdicts.jsonl",
    ):
        assert _ask(server, "GET", path, Authorization=token)[0] == 404
    item = _drawn(server)[0]
    for body in (
        b"[]", b"{}", b"\xff", b'{"verdicts": [{"item": "x/y", "verdict": "correct"}]}',
        json.dumps({"verdicts": [{"item": item, "verdict": "perhaps"}]}).encode(),
        json.dumps({"verdicts": [{"item": item, "verdict": "wrong", "label": "x" * 999}]}).encode(),
        *(
            json.dumps({"verdicts": [{"item": item, "verdict": "wrong", "boxes": boxes}]}).encode()
            for boxes in (
                7, [{"name": "a"}], [_BOX] * 501, [{**_BOX, "name": " "}], [{**_BOX, "x2": 0.1}], [{**_BOX, "y2": 1.5}],
            )
        ),
    ):  # fmt: skip
        status, told = _ask(server, "POST", "/verdicts", body, Authorization=token)
        assert (status, "error" in told) == (400, True)
    assert _ask(server, "POST", "/verdicts", b"x" * 2_000_000, Authorization=token)[0] == 413
    assert server.review.count_reviewed() == 0


def test_only_what_is_kept_is_shown(server: ReviewServer, tmp_path: Path) -> None:
    """No link out of the folder, be it a file or a folder, and no pipe."""
    (sample, *_) = (server.review.folder / "samples").iterdir()
    (tmp_path / "secret.txt").write_text("secret")
    (sample / "link.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(sample / "pipe.txt")
    (sample.parent / "out").symlink_to(tmp_path)
    (sample / "kept.txt").write_text("{}")
    token = f"Bearer {server.token}"
    paths = [f"{sample.name}/{name}" for name in ("link.txt", "pipe.txt", "kept.txt")] + ["out/secret.txt"]
    answers = [_ask(server, "GET", f"/files/{path}", Authorization=token)[0] for path in paths]
    assert answers == [404, 404, 200, 404]
    for path in (sample / "link.txt", sample / "pipe.txt", sample / "kept.txt", sample.parent / "out"):
        path.unlink()


@pytest.mark.parametrize("length", ["99999999999999999999", "9" * 5000, "1000000000000", "-1", "x"])
def test_whatever_length_is_said_there_is_an_answer(server: ReviewServer, length: str) -> None:
    """Before the body, of which nothing may come."""
    headers = f"Host: localhost\r\nAuthorization: Bearer {server.token}\r\nContent-Length: {length}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(b"POST /verdicts HTTP/1.1\r\n" + headers.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
