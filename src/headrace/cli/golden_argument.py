"""A set of items that an argument names: a file of arrays, or a folder of images with the pipeline that prepares them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.base.meaning import Output
    from headrace.validate.golden import Golden
    from headrace.validate.variant_spec import VariantSpec


def read_items(
    path: str | None,
    pipeline: str | None,
    spec: VariantSpec,
    say: Callable[[str], object],
    *,
    labelled: bool = True,
) -> Golden | None:
    """Return the set; None if the argument was not given.

    Args:
        path: A file, or a folder.
        pipeline: MODULE:ATTRIBUTE of the pipeline that prepares a folder's images.
        spec: The model, which may say what its classes are called.
        say: Told what was left out.
        labelled: Whether a folder's images need labels.

    Raises:
        SettingsError: If it cannot be read, or a folder comes without a pipeline.
    """
    from headrace.base.errors import SettingsError
    from headrace.validate.golden import read_golden

    if path is None:
        return None
    if not Path(path).is_dir():
        return read_golden(Path(path), lambda: spec.open().inputs)
    if pipeline is None:
        raise SettingsError(
            f"{path} is a folder: name the pipeline that decodes and preprocesses its images, with --pipeline MODULE:ATTRIBUTE"
        )
    from headrace.cli.loading import load_pipeline
    from headrace.cli.module_argument import stage_of_model
    from headrace.validate.golden_folder import read_golden_folder
    from headrace.validate.meaning_choice import class_names

    loaded = load_pipeline(pipeline)
    module = stage_of_model(loaded, spec.model.artifact).module
    say(f"{path}: decoding and preprocessing with {pipeline}")
    return read_golden_folder(
        Path(path), module, class_names(spec.open().metadata), labelled=labelled, stages=loaded.stages, say=say
    )


def noise(spec: VariantSpec, pipeline: str | None, num_items: int) -> Golden:
    """Return noise that a model takes, of the size that the pipeline prepares where one is named.

    Raises:
        SettingsError: If nothing can be made up for it.
    """
    from headrace.validate.synthetic_inputs import Shapes, make_up

    model, prepared = spec.open(), find_prepared_shape(pipeline, spec.model.artifact)
    first = model.inputs[0]
    known: list[Shapes] = [{first.name: ("batch", *prepared)}] if prepared else []
    return make_up(spec.model, model.inputs, model.metadata, known).make_golden(num_items)


def find_prepared_shape(pipeline: str | None, model: str | None) -> tuple[int, ...] | None:
    """Return the shape of an image as a pipeline prepares it for a model; None where that cannot be told."""
    if pipeline is None:
        return None
    from headrace.base.errors import SettingsError
    from headrace.cli.loading import load_pipeline
    from headrace.cli.module_argument import stage_of_model
    from headrace.validate.preparation import find_stages_before_model, shape_of_any

    loaded = load_pipeline(pipeline)
    try:
        return shape_of_any(find_stages_before_model(stage_of_model(loaded, model).module, loaded.stages))
    except SettingsError:
        return None


def find_declared_output(pipeline: str | None, model: str | None) -> Output:
    """Return what the module of a pipeline declares a model's answers to mean; None where it does not, or is not known."""
    if pipeline is None:
        return None
    from headrace.base.errors import SettingsError
    from headrace.cli.loading import load_pipeline
    from headrace.cli.module_argument import stage_of_model

    loaded = load_pipeline(pipeline)
    try:
        return stage_of_model(loaded, model).module.output
    except SettingsError:
        return None
