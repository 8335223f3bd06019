"""What the service says of itself, over HTTP and gRPC."""

from __future__ import annotations

from typing import Any, Protocol

from headrace import __version__
from headrace.serve.oip.inference import Inference
from headrace.serve.oip.models import VERSION

_EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "schedule_policy", "statistics")


class SaysWhyNot(Protocol):
    """Knows how the service is."""

    def why_not_live(self) -> str:
        """Return what hangs; empty: nothing does."""
        ...

    def why_not_ready(self) -> str:
        """Return what is missing; empty: it can answer."""
        ...


def describe_server() -> dict[str, Any]:
    """Return name, version and extensions."""
    return {"name": "headrace", "version": __version__, "extensions": _EXTENSIONS}


def list_models(inference: Inference, health: SaysWhyNot, *, only_ready: bool = False) -> list[dict[str, str]]:
    """Return every model, or every one that is ready, with its state, as Triton's extension `model_repository` has it."""
    why_not = health.why_not_ready()
    if only_ready and why_not:
        return []
    state = {"version": VERSION, "state": "UNAVAILABLE" if why_not else "READY", "reason": why_not}
    return [{"name": name, **state} for name in inference.models]
