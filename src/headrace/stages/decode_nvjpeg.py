"""JPEGs by NVIDIA's nvJPEG on a GPU, through nvImageCodec: written by its documentation, and never run, for want of a GPU.

References:
    docs.nvidia.com/cuda/nvimagecodec: Decoder, Backend, DecodeParams, Image.cpu.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.base.errors import SettingsError
from headrace.stages.decoders import check_size, upright
from headrace.stages.image_header import ImageHeader
from headrace.stages.nvidia_driver import has_driver

_INSTEAD = "expected auto, simplejpeg, opencv or pillow"


class NvJpeg:
    """nvJPEG on the first GPU; see `decoders.Decoder`. One per worker. It gives every pixel, as it cannot reduce.

    Raises:
        SettingsError: If there is no GPU, or nvImageCodec is not installed; says which.
    """

    def __init__(self) -> None:
        if not has_driver():
            raise SettingsError(
                f'decode.decoder = "nvjpeg" cannot be used: this machine has no NVIDIA driver; {_INSTEAD}'
            )
        try:
            from nvidia import nvimgcodec  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise SettingsError(
                'decode.decoder = "nvjpeg" cannot be used: nvImageCodec is not installed; '
                "pip install nvidia-nvimgcodec-cu12[nvjpeg]"
            ) from None
        kinds = nvimgcodec.BackendKind
        # The processor's part of it is left out: the other decoders are better at that.
        backends = [nvimgcodec.Backend(kind) for kind in (kinds.HW_GPU_ONLY, kinds.GPU_ONLY, kinds.HYBRID_CPU_GPU)]
        try:
            # Colours between their samples as libjpeg has them; without it they are off by many grey levels at edges.
            self._decoder: Any = nvimgcodec.Decoder(device_id=0, backends=backends, options=":fancy_upsampling=1")
        except Exception as error:  # its own kinds
            raise SettingsError(
                f'decode.decoder = "nvjpeg" cannot be used: nvImageCodec finds no GPU ({error}); {_INSTEAD}'
            ) from None
        self._params = nvimgcodec.DecodeParams(apply_exif_orientation=False)

    def __call__(self, data: bytes, header: ImageHeader, factor: int) -> np.ndarray:
        """Return the image.

        Raises:
            ValueError: If nvJPEG cannot read it.
        """
        if header.components == 4:
            raise ValueError("CMYK is left to the next decoder")
        image = self._decoder.decode(data, params=self._params)
        if image is None:
            raise ValueError("not decodable")
        pixels = np.array(image.cpu())
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise ValueError(f"it gives {pixels.dtype} {pixels.shape}")
        check_size(header, factor, *pixels.shape[:2])
        return upright(pixels, header.orientation)
