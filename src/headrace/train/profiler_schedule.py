"""When torch.profiler records within a training: `wait=20,warmup=2,active=5,repeat=1`. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headrace.base.errors import SettingsError

#: Set by `headrace train --torch-profiler`; inherited by every process of the program.
VARIABLE = "HEADRACE_TORCH_PROFILER"
#: The same of `--layers`.
LAYERS_VARIABLE = "HEADRACE_TRAIN_LAYERS"
_MOST = 1_000_000
#: A trace of more steps is too large to be looked at.
_MOST_ACTIVE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerSchedule:
    """Steps in a row, then again."""

    wait: int = 20
    """Steps that are not profiled; before the first cycle the training warms up in them."""
    warmup: int = 2
    """Steps in which the profiler runs and records nothing: its own first steps are the slowest."""
    active: int = 5
    """Steps that are recorded."""
    repeat: int = 1
    """Cycles; each leaves a trace."""
    stack: int = 0
    """1: record which Python function called what; slows the host most of all."""
    shapes: int = 0
    """1: record the shapes of operators' inputs."""

    @property
    def cycle(self) -> int:
        """Steps of a cycle."""
        return self.wait + self.warmup + self.active

    def phase(self, step: int) -> str:
        """Return what the profiler does in a step, counted from its beginning: `none`, `warmup`, `active` or `last`."""
        if step >= self.repeat * self.cycle:
            return "none"
        place = step % self.cycle
        if place < self.wait:
            return "none"
        if place < self.wait + self.warmup:
            return "warmup"
        return "last" if place == self.cycle - 1 else "active"


def parse_schedule(text: str) -> ProfilerSchedule:
    """Return the schedule that a text names, such as `wait=20,warmup=2,active=5`; what it leaves out is as above.

    Raises:
        SettingsError: If it names something else.
    """
    known = {field.name: field.default for field in fields(ProfilerSchedule)}
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in known or not value.isascii() or not value.isdigit() or len(value) > 7:
            raise SettingsError(
                f"--torch-profiler: {part.strip()!r} is none of its parts; expected {','.join(f'{one}=N' for one in known)}, "
                "for example wait=20,warmup=2,active=5"
            )
        found[name] = int(value)
    schedule = ProfilerSchedule(**found)
    limits = {
        "wait": (0, _MOST), "warmup": (1, _MOST), "active": (1, _MOST_ACTIVE), "repeat": (1, 100), "stack": (0, 1),
        "shapes": (0, 1),
    }  # fmt: skip
    for name, (least, most) in limits.items():
        value = getattr(schedule, name)
        if not least <= value <= most:
            raise SettingsError(f"--torch-profiler: {name} is {value}; expected {least} to {most}")
    return schedule
