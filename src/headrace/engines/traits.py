"""What the rest of headrace asks of an engine; known without its library, which may be large or missing."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.base.plan import DEFAULT_ENGINE
from headrace.base.settings import check

#: Names of the engines that come with headrace, as Plans write them.
ONNX, OPENVINO, TORCH, EMULATED = DEFAULT_ENGINE, "openvino", "torch", "emulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """What an engine reads, needs and can do. An engine of another package has it as its class's `traits`."""

    title: str = ""
    """Its name in sentences; empty: as in a Plan."""
    reads: tuple[str, ...] = ()
    """Suffixes of the model files that it opens: `.onnx`. None: `headrace optimize` does not try it."""
    precisions: tuple[str, ...] = ()
    """Values of its option `precision`, the most exact first: `f32`, `bf16`, `f16`; empty: it has no such option."""
    providers: tuple[str, ...] = ()
    """Values of its option `provider` that need other hardware than the CPU."""
    domains: tuple[str, ...] | None = None
    """Domains of ONNX operators outside the standard that it knows; it refuses all others. None: it has to be tried."""
    gain: tuple[float, float] | None = None
    """Least and largest speed-up over the default engine that was measured with one file in float32."""
    says: str = ""
    """What it is known for, a phrase for the list of techniques."""
    is_emulated: bool = False
    """Whether its times are settings: `launch_seconds` and `item_seconds` of its options and of its models' variants."""
    uses_cores: bool = True
    """Whether it computes on this machine's cores, with the threads that it is given."""
    takes_devices: bool = False
    """Whether it has an option `device`, the number of the device that it opens a model on, so that a Plan's `devices` work."""
    runs_networks: bool = False
    """Whether it runs networks of the user's code, which the pipeline's module registers: its files do not open alone."""
    prefers_unsigned: bool = False
    """Whether int8 with signed activations falls back to float32 in it."""
    module: str = ""
    """The Python module that it needs; empty: it comes with the engine."""
    install: str = ""
    """What `pip install` takes to have that module."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions decide its numbers and times, beside the one that brings it and what that requires."""

    @property
    def missing(self) -> str:
        """What is said where its module is not installed."""
        return f"{self.title or self.module} is not installed: pip install '{self.install or self.module}'"


def check_device(device: int, provider: str) -> None:
    """Raise SettingsError for a number of a device where there is none, or one only."""
    check(device >= 0, "device", device, "a whole number >= 0")
    check(
        device == 0 or provider != "cpu", "device", device,
        'only 0 with provider = "cpu": all cores of a machine are one device, whose calls `instances` run side by side',
    )  # fmt: skip


#: Of the engines that come with headrace.
BUILT_IN = {
    ONNX: EngineTraits(
        title="ONNX Runtime", reads=(".onnx",), providers=("cuda", "tensorrt"), domains=("com.microsoft",),
        prefers_unsigned=True, takes_devices=True, packages=("onnxruntime",),
    ),
    OPENVINO: EngineTraits(
        title="OpenVINO", reads=(".onnx", ".xml"), precisions=("f32", "bf16", "f16"), gain=(0.86, 1.0),
        says="the same numbers by another engine's kernels (0.9 to 1.0 times measured on ResNet-18 and MobileNetV2)",
        module="openvino", install="headrace[openvino]", packages=("openvino",),
    ),
    TORCH: EngineTraits(
        title="PyTorch", reads=(".safetensors", ".pt", ".pth"), precisions=("f32", "bf16"), providers=("cuda", "tensorrt"),
        takes_devices=True, runs_networks=True, module="torch", install="headrace[torch]", packages=("torch",),
    ),
    EMULATED: EngineTraits(title="the emulated device", is_emulated=True, uses_cores=False, takes_devices=True),
}  # fmt: skip
