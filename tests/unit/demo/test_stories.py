"""The stories of `headrace demo`: complete folders, which the command finds, lists and copies."""

from __future__ import annotations

import importlib.util
import json
import runpy
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import headrace.demo.stories
from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.cli import main, make_parser
from headrace.demo.stories import Change, Story, copy_story, find_folder, find_folders, read_story
from headrace.demo.telling import CommandFailed, Telling, list_commands, tell

EXAMPLES = Path(__file__).parents[3] / "examples" / "stories"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
TYPED = [name for name in NAMES if not (EXAMPLES / name / "story.py").exists()]


def program(name: str) -> ModuleType:
    """Return the `jobs.py` of a story."""
    spec = importlib.util.spec_from_file_location(f"jobs_of_{name}", EXAMPLES / name / "jobs.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_a_story_is_complete(name: str) -> None:
    """Its folder says what it is, its transcript is there, and the page of examples lists it."""
    assert read_story(EXAMPLES / name).title
    assert (EXAMPLES / name / "transcript.txt").exists()
    assert f"stories/{name}/README.md" in (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    assert f"headrace demo {name}" in (EXAMPLES / name / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TYPED)
def test_the_transcript_is_of_this_story(name: str) -> None:
    """It holds the title, what was believed, every command and every proposal, as they are now."""
    story = read_story(EXAMPLES / name)
    transcript = (EXAMPLES / name / "transcript.txt").read_text(encoding="utf-8")
    lines, words = transcript.splitlines(), " ".join(transcript.split())
    assert [command for command in list_commands(story) if command not in lines] == []
    assert [text for text in (story.title, story.believed, story.learned, story.emulated) if text not in words] == []
    assert [change.asks for change in story.changes if change.asks not in words] == []


@pytest.mark.parametrize("name", TYPED)
def test_the_commands_can_be_typed_where_the_files_are(name: str) -> None:
    """Their options exist, and the Plans that they name are in the folder."""
    story = read_story(EXAMPLES / name)
    for command in list_commands(story):
        argv = shlex.split(command)[2:]
        _, rest = make_parser(argv).parse_known_args(argv)
        assert not rest, command
    for change in story.changes:
        if change.tried and story.is_training:
            assert (EXAMPLES / name / change.tried.split(" ")[0]).is_file()
        elif change.tried:
            Plan.load(EXAMPLES / name / change.tried.partition("@")[2])


def test_stories_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """With what people believed, for people and for programs."""
    assert list(find_folders()) == NAMES
    assert main(["demo", "--list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed.splitlines() for name in NAMES)
    assert main(["demo", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["stories"]["nms"]["title"] == read_story(EXAMPLES / "nms").title


def test_a_story_that_does_not_exist_is_refused_with_the_nearest() -> None:
    """And with the names of all."""
    with pytest.raises(
        SettingsError, match=r"no story 'nsm'; did you mean nms\? the stories: augmentation, .*wrong_thing"
    ):
        find_folder("nsm")


def test_a_copy_can_be_changed_and_holds_no_figures_of_another_machine(tmp_path: Path) -> None:
    """The program and its Plans are copied; the transcript is not."""
    copy_story(EXAMPLES / "nms", tmp_path / "copy")
    assert (tmp_path / "copy" / "jobs.py").exists()
    assert not (tmp_path / "copy" / "transcript.txt").exists()


def test_a_folder_with_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A story overwrites nothing."""
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["demo", "nms", "-o", str(tmp_path)]) == 2
    assert "allowed: a new or empty folder" in capsys.readouterr().err


def test_a_wheel_carries_them_where_the_command_looks() -> None:
    """The build puts the folder of examples into the package, and the image has it when it builds."""
    root = EXAMPLES.parents[1]
    built = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    inside = Path(headrace.demo.stories.__file__).parent.relative_to(root / "src") / "examples"
    assert built["wheel"]["force-include"] == {"examples/stories": inside.as_posix()}
    assert headrace.demo.stories._PLACES[0] == root / "src" / inside
    assert "COPY examples/stories examples/stories" in (root / "Containerfile").read_text(encoding="utf-8")


def test_stories_that_no_wheel_carries_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the folder is missing, the list is empty, and a name says so."""
    monkeypatch.setattr("headrace.demo.stories._PLACES", (tmp_path,))
    assert find_folders() == {}


def test_commands_come_in_the_order_of_the_story() -> None:
    """Profile, diagnosis; then each proposal is asked and tried."""
    story = Story(title="", believed="", learned="", slow="jobs.py:slow@slow.toml", items=7)
    assert [command.split()[2] for command in list_commands(story)] == ["profile", "diagnose"]


def test_a_training_is_recorded_and_compared_as_such() -> None:
    """Its script stands where a pipeline and its Plan do, with its arguments."""
    changes = (Change(name="", asks="", whatif=("--set", "loader.workers=2"), tried="train.py --workers 2"),)
    story = Story(title="", believed="", learned="", slow="train.py", changes=changes)
    assert list_commands(story) == [
        "$ headrace train -o runs/slow train.py",
        "$ headrace diagnose runs/slow",
        "$ headrace whatif runs/slow --set loader.workers=2",
        "$ headrace train compare train.py 'train.py --workers 2' --blocks 6",
    ]


def test_a_story_says_which_packages_are_missing(tmp_path: Path) -> None:
    """Before anything runs."""
    story = Story(title="", believed="", learned="", slow="train.py", needs=("no_such_package",))
    with pytest.raises(CommandFailed, match="needs no_such_package: pip install no_such_package"):
        Telling(story, tmp_path, print).tell()


@pytest.mark.full
def test_both_tokenisers_give_the_same_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fix of the story changes nothing that is learnt from."""
    pytest.importorskip("transformers")
    from transformers import BertTokenizerFast
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "tokeniser" / "texts.py"))
    texts = Path("texts.txt").read_text().splitlines()
    padded = {"max_length": 128, "padding": "max_length", "truncation": True}
    slow, fast = BertTokenizerLegacy("vocabulary.txt"), BertTokenizerFast("vocabulary.txt")
    ids = fast(texts, **padded)["input_ids"]
    assert len(ids) == 480
    assert [slow(text, **padded)["input_ids"] for text in texts] == ids


def test_nms_keeps_the_same_boxes() -> None:
    """The fix of the story changes no answer."""
    jobs = program("nms")
    proposed = (jobs.BOXES, jobs.SCORES)
    assert jobs.Defects().postprocess(proposed) == jobs.Fixed().postprocess(proposed)


def test_the_fused_steps_give_the_same_answers() -> None:
    """The fix of the story changes no answer, however sure the network is."""
    jobs = program("many_small_steps")
    slow, fused = jobs.Places(), jobs.Fused()
    random = np.random.default_rng(1)
    for spread in (0.5, 3.0, 10.0):
        coarse = random.normal(size=(11, 9, 9)).repeat(4, axis=1).repeat(4, axis=2)[:, : jobs.CELLS, : jobs.CELLS]
        logits = (spread * (coarse + 0.1 * random.normal(size=coarse.shape))).astype(np.float32)
        answers = slow.postprocess(logits)
        assert answers == fused.postprocess(logits)
        assert (len(answers) > 20) == (spread > 1)


def test_run_lengths_say_the_same_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever receives them can draw the mask again."""
    jobs = program("masks")
    sent: list[str] = []
    monkeypatch.setattr(jobs, "post", sent.append)
    mask = np.random.default_rng(2).uniform(size=(20, 30))
    jobs.send(mask)
    jobs.send_run_lengths(mask)
    whole, short = map(json.loads, sent)
    inside = np.repeat(np.arange(len(short["runs"])) % 2 == 1, short["runs"])
    drawn = np.zeros(mask.size, bool)
    drawn[: len(inside)] = inside
    assert np.array_equal(drawn.reshape(short["shape"]), np.asarray(whole["mask"]) > 0.5)


def test_a_story_of_its_own_is_told_where_its_files_are(tmp_path: Path) -> None:
    """What it prints as commands names its program and what it wrote: both lie in one folder."""
    (tmp_path / "story.py").write_text(
        "import pathlib, sys\nfolder = pathlib.Path(sys.argv[1])\n(folder / 'made.txt').touch()\nprint('$ ls made.txt')\n"
    )
    lines: list[str] = []
    tell(tmp_path, lines.append)
    assert lines == ["$ ls made.txt"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["made.txt", "story.py"]
