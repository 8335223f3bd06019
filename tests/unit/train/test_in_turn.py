"""Two trainings are run in turn, and their rates compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.full

from headrace.base.errors import HeadraceError, SettingsError  # noqa: E402
from headrace.cli import main  # noqa: E402
from headrace.train.in_turn import Amount, compare_trainings  # noqa: E402

#: Waits for as many milliseconds as it is told in each of 10 steps of 4 samples.
SCRIPT = """
import sys, time, torch
with open("order.txt", "a") as order:
    order.write(sys.argv[1] + " ")
data = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, batch in enumerate(data):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    time.sleep(float(sys.argv[1]) / 1000)
    if number + 1 == int(sys.argv[2]):
        break
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with the script."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_trainings_take_turns_and_the_ratio_is_that_of_their_samples(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs go A B, B A; the rate is samples per second of the steps, and no longer than the steps waited."""
    command = ["train", "compare", "train.py 20 10 0", "train.py 5 10 0", "--blocks", "2", "-o", "c.json", "--json"]
    assert main(command) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads((folder / "c.json").read_text())
    assert (folder / "order.txt").read_text().split() == ["20", "5", "5", "20"]
    a, b = printed["a"], printed["b"]
    assert (printed["unit"], printed["num_pairs"], printed["paired"]) == ("samples/s", 2, True)
    assert max(a["values"]) <= 4 / 0.020 < 4 / 0.005
    assert max(b["values"]) <= 4 / 0.005
    assert a["stages"]["after"] >= 0.020
    assert a["plan"]["loader.workers"] == 0
    assert (a["name"], a["pipeline"]) == ("train.py 20 10 0", "train.py")
    assert printed["ratio"] == pytest.approx((b["values"][0] / a["values"][0] * b["values"][1] / a["values"][1]) ** 0.5)


@pytest.mark.parametrize(
    ("b", "says"),
    [
        ("train.py 0 10 3", r"train.py 0 10 3: exit status 3; a training that fails cannot be compared"),
        ("train.py 0 5 0", r"train.py 0 5 0: 5 steps recorded; a rate needs 8 steps"),
    ],
)
def test_a_training_that_tells_no_rate_ends_it(folder: Path, b: str, says: str) -> None:
    """It failed, or made too few steps."""
    with pytest.raises(HeadraceError, match=says):
        compare_trainings("train.py 0 10 0", b, amount=Amount(pairs=1))


def test_what_cannot_be_run_is_refused_before_anything_runs(folder: Path) -> None:
    """A script that does not exist; a number of pairs that is none."""
    with pytest.raises(SettingsError, match=r"'other\.py' does not exist"):
        compare_trainings("train.py 0 10 0", "other.py", amount=Amount(pairs=1))
    assert not (folder / "order.txt").exists()
    with pytest.raises(SettingsError, match="1 to 1000 pairs"):
        Amount(pairs=0)


def test_a_quote_that_is_not_closed_is_refused(folder: Path) -> None:
    """As any other command that names nothing."""
    with pytest.raises(SettingsError, match="is no command: No closing quotation"):
        compare_trainings("train.py 0 10 0", "train.py 'x", amount=Amount(pairs=1))


def test_an_interrupt_ends_it(folder: Path) -> None:
    """A training that Ctrl-C ended is no measurement; before the first pair nothing is known."""
    (folder / "stops.py").write_text("import os, signal\nos.kill(os.getppid(), signal.SIGINT)\nsignal.pause()\n")
    command = ["train", "compare", "stops.py", "train.py 0 10 0", "--blocks", "1"]
    assert main(command) == 130
    assert not (folder / "order.txt").exists()


def test_an_interrupt_that_a_script_survives_ends_it_too(folder: Path) -> None:
    """A script that saves its state and ends well: its shortened training is no measurement, and the other does not begin."""
    catches = "import os, signal\nsignal.signal(signal.SIGINT, lambda *_: None)\n"
    stops = catches + "os.kill(os.getppid(), signal.SIGINT)\nsignal.pause()\n"
    (folder / "saves.py").write_text(stops + SCRIPT)
    assert main(["train", "compare", "saves.py 0 10 0", "train.py 1 10 0", "--blocks", "1"]) == 130
    assert (folder / "order.txt").read_text().split() == ["0"]
