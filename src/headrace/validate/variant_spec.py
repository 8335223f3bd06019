"""A variant of a model as a user writes it, `MODEL[@ENGINE[,KEY=VALUE]...]`, and opened as a pipeline would open it.

scenes.onnx
scenes.onnx@openvino
scenes.onnx@openvino,precision=bf16,threads=2
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.plan import ModelPlan, Plan
from headrace.base.protocols import Model
from headrace.base.settings import check
from headrace.engines import check_engine, engine_for, open_model


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """A model file with everything that decides how it runs."""

    text: str
    """As the user wrote it."""
    model: ModelPlan

    def open(self, calls: int = 1) -> Model:
        """Open it.

        Args:
            calls: Threads that will call it side by side.

        Raises:
            EngineError: If the file is missing, unreadable or not for its engine.
            MissingExtra: If the engine is not installed.
        """
        return open_model(self.model, None, 1, calls)


def variant_settings(model: ModelPlan) -> dict[str, Any]:
    """Return what `ModelPlan` takes to be this one again, without what is not set."""
    extra = {"sha256": model.sha256, "input_side": model.input_side}
    return {
        "artifact": model.artifact, "engine": model.engine, "threads": model.threads, "options": dict(model.options),
        **{key: value for key, value in extra.items() if value is not None},
    }  # fmt: skip


def variant_text(model: ModelPlan) -> str:
    """Return the text of a variant, as `parse_variant` takes it."""
    side = {} if model.input_side is None else {"input_side": model.input_side}
    settings = {"threads": model.threads, **side, **model.options}
    shown = {key: str(value).lower() if isinstance(value, bool) else value for key, value in settings.items()}
    return f"{model.artifact}@{model.engine}{''.join(f',{key}={value}' for key, value in shown.items())}"


def parse_variant(text: str, threads: int = 1) -> VariantSpec:
    """Return the variant that a text names.

    Args:
        text: `MODEL[@ENGINE[,KEY=VALUE]...]`; keys are `threads`, `input_side` and the engine's options.
        threads: Threads inside one call, where the text does not say.

    Raises:
        SettingsError: If it names no file, an unknown engine, or a setting that is not KEY=VALUE.
    """
    # At the last @ before an engine: a file's name may hold one.
    artifact, _, rest = text.rpartition("@") if "@" in text and not Path(text).exists() else (text, "", "")
    name, *settings = rest.split(",") if rest else [engine_for(artifact)]
    check(bool(artifact), "model", text, "MODEL[@ENGINE[,KEY=VALUE]...] such as scenes.onnx@openvino,precision=bf16")
    check_engine(name, "engine")
    changes = [f"model.threads={threads}"]
    for setting in settings:
        key, equals, value = setting.partition("=")
        check(bool(key and equals and value), "setting", setting, "KEY=VALUE such as precision=bf16 or threads=2")
        # A word is a string of the Plan's TOML; numbers, true and false stay what they are.
        written = value if value[0].isdigit() or value in ("true", "false") else f'"{value}"'
        changes.append(
            f"model.{key}={written}" if key in ("threads", "input_side") else f"model.options.{key}={written}"
        )
    plan = Plan.from_table({"model": {"artifact": artifact, "engine": name}}).with_settings(changes)
    return VariantSpec(text, plan.model)
