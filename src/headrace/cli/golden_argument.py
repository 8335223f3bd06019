"""A set of items that an argument names: a file of arrays, or a folder of images with the pipeline that prepares them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        return read_golden(Path(path))
    if pipeline is None:
        raise SettingsError(
            f"{path} is a folder: name the pipeline that decodes and preprocesses its images, with --pipeline MODULE:ATTRIBUTE"
        )
    from headrace.base.words import counted
    from headrace.cli.loading import load_pipeline
    from headrace.stages.module import ProcessStage
    from headrace.validate.golden_folder import read_golden_folder

    modules = [stage.module for stage in load_pipeline(pipeline).stages if isinstance(stage, ProcessStage)]
    if len(modules) != 1:
        raise SettingsError(
            f"{pipeline} has {counted(len(modules), 'module')}, and one must prepare the images; make the set yourself: .npz"
        )
    say(f"{path}: decoding and preprocessing with {pipeline}")
    return read_golden_folder(Path(path), modules[0], _names(spec), labelled=labelled, say=say)


def _names(spec: VariantSpec) -> list[str] | None:
    """Return the classes in the order of the model's output, where its file says so."""
    try:
        names = json.loads(spec.open().metadata.get("names", "null"))
    except ValueError:
        return None
    return [str(name) for name in names] if isinstance(names, list) else None
