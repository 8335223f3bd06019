"""Augmentation by NVIDIA DALI on a GPU: written by its documentation, and never run, for want of a GPU.

References:
    docs.nvidia.com/deeplearning/dali: pipeline_def, fn.external_source, fn.slice, fn.resize, fn.flip, fn.crop_mirror_normalize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.base.errors import SettingsError
from headrace.stages.nvidia_driver import has_driver


def open_dali(augmentation: Any, batch: int) -> Callable[[Sequence[Any]], list[np.ndarray]]:
    """Return what augments a batch on the first GPU.

    Args:
        augmentation: The `Augmentation` of what is drawn.
        batch: The largest one.

    Raises:
        SettingsError: If there is no GPU, or DALI is not installed; says which.
    """
    if not has_driver():
        raise SettingsError('where = "dali" cannot be used: this machine has no NVIDIA driver; expected worker or cpu')
    try:
        from nvidia.dali import fn, pipeline_def, types  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise SettingsError(
            'where = "dali" cannot be used: DALI is not installed; pip install nvidia-dali-cuda120, or take cuda'
        ) from None
    waiting: list[Sequence[Any]] = []

    def feed() -> tuple[list[Any], ...]:
        drawn = waiting[0]
        draws = [one.draw for one in drawn]
        return (
            [one.image for one in drawn],
            [np.array([one.top, one.left], np.int64) for one in draws],
            [np.array([one.height, one.width], np.int64) for one in draws],
            [np.array(int(one.mirrored), np.int32) for one in draws],
            [augmentation.factor_of(one) for one in draws],
        )

    @pipeline_def(batch_size=batch, num_threads=1, device_id=0)  # type: ignore[untyped-decorator,unused-ignore]
    def make() -> Any:
        images, start, shape, mirrored, factor = fn.external_source(feed, num_outputs=5)
        crops = fn.slice(images.gpu(), start=start, shape=shape, axes=(0, 1))
        resized = fn.resize(
            crops, size=(augmentation.side, augmentation.side), interp_type=types.INTERP_LINEAR, antialias=False
        )
        crops = fn.cast(fn.flip(resized, horizontal=mirrored), dtype=types.FLOAT)
        mean = fn.reductions.mean(crops)
        lit = crops * factor[0] + mean * factor[1]
        return fn.crop_mirror_normalize(
            lit,
            mean=[255 * one for one in augmentation.mean],
            std=[255 * one for one in augmentation.std],
            output_layout="CHW",
        )

    pipeline = make()
    pipeline.build()

    def augment(drawn: Sequence[Any]) -> list[np.ndarray]:
        waiting[:] = [drawn]
        (found,) = pipeline.run()
        return [np.asarray(one) for one in found.as_cpu()]

    return augment
