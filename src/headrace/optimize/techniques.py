"""What can be tried with a model, from what changes nothing to what changes most; each says where it does not apply, and why.

A technique makes candidates: variants of the model, be it by other settings of the same file or by a new file. Whether one is
any good is not its business: every candidate passes the same gates (`cheap_gates`, `golden_test`).

A new technique is a `Technique` in `LADDER`, or in `REPAIRS` if it pays only where int8 has failed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headrace.base.errors import EngineError
from headrace.base.plan import DEFAULT_ENGINE, ModelPlan
from headrace.engines import ONNX, OPENVINO, engine_for, file_engines, reads, traits_of, versions_of, why_missing
from headrace.optimize.artifacts import ArtifactStore
from headrace.optimize.expected_speedup import INT8, ExpectedSpeedup
from headrace.optimize.incumbent import Incumbent
from headrace.optimize.presets import HERE, TENSORRT, Preset, find_preset, why_slow_int8
from headrace.optimize.recipe import PRUNE_SHARES, Buildable
from headrace.runs.cpu_features import BFLOAT16_FLAGS
from headrace.runs.formats.optimization import Artifact, TechniqueKind
from headrace.validate.golden import Golden
from headrace.validate.parity import BANDS
from headrace.validate.precision_audit import is_quantized
from headrace.validate.variant_spec import VariantSpec, variant_text

#: Key of a file's parameters: why it is known to be no good before any gate is asked.
REFUTED = "refuted"
#: The same: `input_side` of the Plans that use it, for files that take smaller images.
INPUT_SIDE = "input_side"
#: Fewer items than these leave ranges to chance.
FEWEST_CALIBRATION_ITEMS = 32


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a technique cannot be tried."""

    why: str
    until: str = ""
    """What would have to change; empty if `why` says so itself."""

    def __str__(self) -> str:
        return self.why


Why = str | Obstacle


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is to be made cheaper, and with what."""

    original: Artifact
    store: ArtifactStore
    calibration: Golden | None
    threads: int
    flags: frozenset[str]
    """Of the processor."""
    engines: tuple[str, ...]
    """Installed here."""
    recipe: Buildable | None = None
    """How the model is made and trained; None: only its file is known."""
    recipe_key: str = ""
    """Of its code and settings before anything was trained; see `source_hash`."""
    prune_shares: tuple[float, ...] = PRUNE_SHARES
    stop: Callable[[], bool] = lambda: False
    say: Callable[[str], object] = lambda text: None
    input_sizes: tuple[int, ...] = ()
    """Smaller inputs to try."""
    also: tuple[Path, ...] = ()
    """Other models to try, which take the same inputs."""
    networks: tuple[str, ...] = ()
    """That the pipeline's module registered for the torch engine, so that a Plan may name them."""
    target: str = HERE
    """That int8 is written for; one of `presets.TARGETS`."""
    incumbent: Incumbent | None = None
    """What the Plan uses; None: the model as given."""
    scales_before: bool = False
    """Whether smaller inputs are made by the pipeline, before the model: all sets are images that it can prepare anew."""
    made: dict[str, Artifact] = field(default_factory=dict)
    """{technique: the file that it made}: two engines run one file."""

    @property
    def path(self) -> Path:
        """The model as it was given."""
        return Path(self.original.file)

    @property
    def calibrated_on(self) -> Golden:
        """The calibration set, for techniques that are tried only with one."""
        assert self.calibration is not None
        return self.calibration

    @property
    def preset(self) -> Preset:
        """How int8 is written."""
        return find_preset(self.target, self.flags)

    def baseline(self) -> VariantSpec:
        """Return the model as it was given, against which answers are held."""
        return _spec(self.original, engine_for(self.original.file), self.threads)

    def in_use(self) -> VariantSpec:
        """Return what runs today, against which speeds are held."""
        return self.incumbent.spec if self.incumbent else self.baseline()

    @property
    def file_in_use(self) -> Artifact:
        """The file that runs today."""
        return self.incumbent.artifact if self.incumbent else self.original

    @property
    def called(self) -> str:
        """What runs today, in words."""
        return "what the Plan uses" if self.incumbent else "the model as given"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A variant to be judged."""

    technique: str
    kind: TechniqueKind
    hypothesis: str
    artifact: Artifact
    spec: VariantSpec
    expected: ExpectedSpeedup | None = None

    @property
    def refuted(self) -> str | None:
        """Why it is known to be no good; None: the gates will tell."""
        why: str | None = self.artifact.parameters.get(REFUTED)
        return why


#: What a technique cannot be tried without.
Needs = Literal[
    "nothing", "calibration data", "a recipe", "a recipe that trains", "calibration data and a recipe that trains"
]
Candidates = Iterator[tuple[Artifact, VariantSpec]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """One way to make a model cheaper."""

    name: str
    kind: TechniqueKind
    says: str
    """What it does and what it is known to gain."""
    expected: ExpectedSpeedup | None = None
    """What it is known to gain, in figures; None: that depends on what the user gives."""
    needs: Needs = "nothing"
    """Beside the model. All but the model as given needs a golden set too, to be recommended."""
    why_not: Callable[[Subject], Why | None]
    """Why it cannot be tried; None if it can."""
    candidates: Callable[[Subject], Candidates]
    """May raise EngineError if it cannot be carried out."""
    option: str = ""
    """Of `headrace optimize`, without which it is not tried; empty: none is needed."""
    in_int8: bool = False
    """Whether its file is written by the target's preset, whose types its hypothesis names."""

    def find_obstacle(self, subject: Subject) -> Obstacle | None:
        """Return why it cannot be tried, and what would change that; None if it can."""
        why = self.why_not(subject)
        return Obstacle(why) if isinstance(why, str) else why

    def try_on(self, subject: Subject) -> Iterator[Candidate]:
        """Give what it makes of a model.

        Raises:
            EngineError: If it cannot be carried out.
            MissingExtra: If a package is missing.
        """
        for artifact, spec in self.candidates(subject):
            name = self._name_of(artifact, spec)
            says = f"{self.says}: {subject.preset.says}" if self.in_int8 else self.says
            yield Candidate(
                technique=name, kind=self.kind, hypothesis=says, artifact=artifact, spec=spec, expected=self.expected
            )  # fmt: skip

    def _name_of(self, artifact: Artifact, spec: VariantSpec) -> str:
        """Return the technique's name; of those that train, which make several files, the file's, such as pruned-2-int8."""
        if self.kind != "trained":
            return self.name
        return artifact.technique + ("-bf16" if spec.model.options.get("precision") == "bf16" else "")


def installed_engines() -> tuple[str, ...]:
    """Return the engines that open model files here."""
    return tuple(name for name in file_engines() if why_missing(name) is None)


def find_deciding_versions(engine: str) -> dict[str, str]:
    """Return the versions of the libraries that decide what a variant on an engine comes to, beside the model as given."""
    return versions_of(ONNX, OPENVINO, engine)


def _spec(artifact: Artifact, engine: str, threads: int, options: Mapping[str, Any] | None = None) -> VariantSpec:
    model = ModelPlan(
        artifact=artifact.file, engine=engine, threads=threads, options=dict(options or {}),
        input_side=artifact.parameters.get(INPUT_SIDE),
    )  # fmt: skip
    return VariantSpec(variant_text(model), model)


# --- other settings of the same file


def _why_not_on(subject: Subject, engine: str) -> str | None:
    """Return why an engine cannot run the model, or need not; None if it can."""
    if engine == subject.baseline().model.engine:
        return "the model as given runs on it"
    known = traits_of(engine)
    if not reads(engine, subject.path):
        return f"{known.title or engine} does not open {subject.path.suffix} files"
    return None if engine in subject.engines else known.missing


def engines_in(subject: Subject, artifact: Artifact, precision: str) -> list[str]:
    """Return the engines that run a file in a precision here."""
    return [name for name in subject.engines if reads(name, artifact.file) and precision in traits_of(name).precisions]


def why_no_precision(subject: Subject, precision: str) -> str | None:
    """Return why no engine runs the model in a precision here; None if one does."""
    if engines_in(subject, subject.original, precision):
        return None
    known = [traits_of(name) for name in file_engines() if reads(name, subject.path)]
    missing = (one.missing for one in known if precision in one.precisions)
    return next(missing, f"no engine that opens {subject.path.suffix} files computes in {precision}")


def why_no_bfloat16(subject: Subject) -> Why | None:
    """Return why a model cannot run in bfloat16 here; None if it can."""
    return why_no_precision(subject, "bf16") or is_quantized_already(subject) or why_no_bfloat16_instructions(subject)


def why_no_bfloat16_instructions(subject: Subject) -> Why | None:
    """Return why bfloat16 is no gain on this processor, whatever the engine; None if it may be one."""
    if subject.flags.intersection(BFLOAT16_FLAGS):
        return None
    flags = ", ".join(BFLOAT16_FLAGS)
    return Obstacle(
        f"this processor does not compute in bfloat16 (none of {flags} among its flags)",
        until=f"a processor with one of {flags}",
    )


def is_quantized_already(subject: Subject) -> Why | None:
    """Return why a precision cannot be chosen for a model; None if it can."""
    if is_quantized(subject.path):
        return Obstacle("the model is quantized already", until="the model in float32, which it was made from")
    return None


# --- int8


def why_no_int8(subject: Subject) -> Why | None:
    """Return why a model cannot be quantized; None if it can."""
    if subject.path.suffix != ".onnx":
        return f"{subject.path.name} is no ONNX file"
    if subject.calibration is None:
        return "it needs calibration data: give --data"
    if len(subject.calibration) < FEWEST_CALIBRATION_ITEMS:
        return (
            f"{len(subject.calibration)} calibration items are too few for ranges; it needs {FEWEST_CALIBRATION_ITEMS}"
        )
    return is_quantized_already(subject)


def _no_equalization(subject: Subject) -> Why | None:
    from headrace.optimize.equalization import num_pairs

    missing = why_no_int8(subject)
    if missing is None and not num_pairs(Path(fold_file(subject).file)):
        why = "no two convolutions follow one another with nothing but a ReLU between them"
        return Obstacle(why, until="another network; int8-reverted and qat mend int8 without it")
    return missing


def fold_file(subject: Subject, source: Artifact | None = None, name: str = "folded") -> Artifact:
    """Return a file, the model as given if none is named, with its constants computed and its normalizations folded."""
    from headrace.optimize.onnx_files import fold

    source = source or subject.original
    return keep_file(subject, name, source, partial(fold, Path(source.file)))


def _equalize(subject: Subject) -> Artifact:
    from headrace.optimize.equalization import equalize

    folded = fold_file(subject)
    return keep_file(subject, "equalized", folded, partial(equalize, Path(folded.file)))


def int8_file(subject: Subject, source: Artifact, name: str, calibrator: str = "minmax") -> Artifact:
    """Return the int8 twin of a file, as the target takes it."""
    from headrace.optimize.int8 import quantize

    def make(output: Path) -> dict[str, Any]:
        slow = why_slow_int8(subject.flags) if subject.target == HERE else None
        if slow is not None:
            subject.say(f"{name}: {slow}")
        items = subject.calibrated_on.scale_to(source.parameters.get(INPUT_SIDE))
        return quantize(Path(source.file), items, output, preset=subject.preset, calibrator=calibrator)

    return keep_file(subject, name, source, make)


def int8_of(subject: Subject, source: Artifact, name: str) -> Candidates:
    """Give the int8 twin of a file, folded before, on each engine; `name` is that of the file."""
    folded = fold_file(subject, source, f"{name}-folded")
    return on_all_engines(subject, int8_file(subject, folded, f"{name}-int8"))


def _no_nncf(subject: Subject) -> Why | None:
    from headrace.optimize.nncf_int8 import why_no_nncf

    if subject.target == TENSORRT.name:
        why = "NNCF chooses the types of int8 for processors, and TensorRT takes int8 around zero alone"
        return Obstacle(why, until="another --target; int8 itself is written for TensorRT")
    return why_no_int8(subject) or why_no_nncf()


def _by_nncf(subject: Subject) -> Candidates:
    from headrace.optimize.nncf_int8 import quantize_by_nncf

    folded = fold_file(subject)
    make = partial(quantize_by_nncf, Path(folded.file), subject.calibrated_on.inputs)
    return on_all_engines(subject, keep_file(subject, "int8-nncf", folded, make))


def _revert(subject: Subject) -> Artifact:
    from headrace.optimize.group_revert import revert

    folded = fold_file(subject)
    int8 = int8_file(subject, folded, "int8")

    def make(output: Path) -> dict[str, Any]:
        found = revert(
            Path(int8.file), Path(folded.file), subject.calibrated_on.inputs, output, goal=BANDS["int8"] / 2,
            stop=subject.stop,
        )  # fmt: skip
        if not found.tensors:
            raise EngineError("its answers are near those of float32 already: there is no group to put back")
        return {
            "reverted": list(found.tensors), "groups": found.num_groups,
            "relative_l2": [found.error_before, found.error_after],
        }  # fmt: skip

    return keep_file(subject, "int8-reverted", int8, make)


def keep_file(
    subject: Subject,
    technique: str,
    parent: Artifact,
    make: Callable[[Path], dict[str, Any] | None],
    suffix: str = ".onnx",
) -> Artifact:
    """Return the file that a technique makes; made once, and kept in the store.

    Args:
        subject: That it is made for.
        technique: Its name.
        parent: What it is made from.
        make: (path) -> its parameters, once it has written the file there; None if there are none.
        suffix: Of the file.
    """
    if technique not in subject.made:
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            output = Path(folder) / f"{subject.path.stem}.{technique}{suffix}"
            side = {INPUT_SIDE: parent.parameters[INPUT_SIDE]} if INPUT_SIDE in parent.parameters else {}
            subject.made[technique] = subject.store.add(
                output, parent=parent, technique=technique, parameters={**side, **(make(output) or {})},
                data_sha256=subject.calibration.sha256 if subject.calibration else "",
            )  # fmt: skip
    return subject.made[technique]


def on_engine(
    subject: Subject, artifact: Artifact, engine: str, options: Mapping[str, Any] | None = None
) -> tuple[Artifact, VariantSpec]:
    """Return a file as one engine runs it."""
    return artifact, _spec(artifact, engine, subject.threads, options)


def on_all_engines(subject: Subject, artifact: Artifact) -> Candidates:
    """Give a file as each engine runs it that opens it, its precision pinned."""
    for engine in subject.engines:
        if reads(engine, artifact.file):
            yield _exactly(subject, artifact, engine)


def in_precision(subject: Subject, artifact: Artifact, precision: str) -> Candidates:
    """Give a file in a precision as each engine runs it that has it."""
    for engine in engines_in(subject, artifact, precision):
        yield on_engine(subject, artifact, engine, {"precision": precision})


def _exactly(subject: Subject, artifact: Artifact, engine: str) -> tuple[Artifact, VariantSpec]:
    """Return a file on an engine in the most exact precision that it has."""
    precisions = traits_of(engine).precisions
    return on_engine(subject, artifact, engine, {"precision": precisions[0]} if precisions else {})


def _other_engine(name: str) -> Technique:
    known = traits_of(name)
    return Technique(
        name=name, kind="lossless", expected=ExpectedSpeedup(*known.gain) if known.gain else None,
        says=known.says or f"the same file on {known.title or name}", why_not=lambda subject: _why_not_on(subject, name),
        candidates=lambda subject: iter([_exactly(subject, subject.original, name)]),
    )  # fmt: skip


#: Where the Plan uses another variant, the model as it was given may be the better one.
AS_GIVEN = Technique(
    name="as-given", kind="lossless", option="--plan", says="the model as it was given, on ONNX Runtime in float32",
    why_not=lambda subject: None if subject.incumbent else "the Plan uses it",
    candidates=lambda subject: iter([(subject.original, subject.baseline())]),
)  # fmt: skip

LADDER = (
    *(_other_engine(name) for name in file_engines() if name != DEFAULT_ENGINE),
    Technique(
        name="bf16", kind="numeric", expected=ExpectedSpeedup(1.5, 4.9),
        says="bfloat16 where the processor computes in it: 2 to 5 times with AMX, for a relative error of 0.3 %",
        why_not=why_no_bfloat16, candidates=lambda subject: in_precision(subject, subject.original, "bf16"),
    ),
    Technique(
        name="int8", kind="lossy", needs="calibration data", expected=INT8,
        says="static int8 in the types of the target (1.8 to 8 times measured with VNNI or AMX)", in_int8=True,
        why_not=why_no_int8, candidates=lambda subject: on_all_engines(subject, int8_file(subject, fold_file(subject), "int8")),
    ),
)  # fmt: skip

#: Techniques whose whole network is in int8.
INT8_AT_FULL_SPEED = ("int8", "int8-equalized", "int8-percentile", "int8-nncf")
#: Tried in this order where int8 has cost too much accuracy.
REPAIRS = (
    Technique(
        name="int8-equalized", kind="lossy", needs="calibration data", expected=INT8, in_int8=True,
        says="int8 after the channels of neighbouring convolutions were evened out, which keeps all of its speed",
        why_not=_no_equalization,
        candidates=lambda subject: on_all_engines(subject, int8_file(subject, _equalize(subject), "int8-equalized")),
    ),
    Technique(
        name="int8-percentile", kind="lossy", expected=INT8, needs="calibration data", in_int8=True,
        says="int8 whose ranges leave out the outermost of 10,000 values, which keeps all of its speed",
        why_not=why_no_int8,
        candidates=lambda subject: on_all_engines(
            subject, int8_file(subject, fold_file(subject), "int8-percentile", "percentile")
        ),
    ),
    Technique(
        name="int8-nncf", kind="lossy", needs="calibration data",
        says="int8 by NNCF, a second opinion: biases corrected for what rounding shifts (1.4 to 8 times measured on OpenVINO)",
        why_not=_no_nncf, candidates=_by_nncf,
    ),
    Technique(
        name="int8-reverted", kind="lossy", needs="calibration data", expected=ExpectedSpeedup(1.0, INT8.high), in_int8=True,
        says="int8 with the groups that do most harm back in float32",
        why_not=why_no_int8, candidates=lambda subject: on_all_engines(subject, _revert(subject)),
    ),
)  # fmt: skip
