"""The child process in which one thing is tried: `python -m headrace.train.search.child REQUEST ANSWER PARENT`.

PARENT is the process id of who started it: it dies with that. REQUEST is a file of JSON: `task`, `recipe` (FILE.py:make),
`seed`, `arguments` of the task. Each line of ANSWER is a result, written as soon as it is known, or
`{"error": text, "kind": "out of memory" | "settings" | "error"}`. What the user's code prints goes to stderr.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.base.documents import decode_document, encode_document
from headrace.base.error_origin import text_of
from headrace.base.errors import SettingsError
from headrace.base.parent_death import die_with_parent
from headrace.base.redaction import hide_secrets_in_text
from headrace.base.shortage import SIGNS_OF_NO_MEMORY

Maker = Callable[[], Any]


def _steps(maker: Maker, seed: int, base_bytes: int, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from headrace.train.search.recipe import make_recipe
    from headrace.train.search.step_trial import run_steps

    recipe = make_recipe(maker, seed)
    names = arguments.pop("checkpointed", [])
    if names:
        from headrace.train.search.saved_bytes import checkpoint_units

        checkpoint_units(recipe.model, names)
    yield run_steps(recipe, base_bytes=base_bytes, **arguments)


def _describe(maker: Maker, seed: int, _base_bytes: int, _arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    import torch

    from headrace.train.search.recipe import make_recipe

    recipe = make_recipe(maker, seed)
    yield {
        "num_samples": len(recipe.data),
        "batch_size": recipe.batch_size,
        "num_validation": 0 if recipe.validation is None else len(recipe.validation),
        "num_parameters": sum(parameter.numel() for parameter in recipe.model.parameters()),
        "device": str(recipe.device),
        "device_bytes": _device_bytes(recipe.device),
        "torch_version": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }


def _device_bytes(device: Any) -> int | None:
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None


def _losses(maker: Maker, _seed: int, _base_bytes: int, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from headrace.train.search.loss_trial import train_for_losses

    yield from train_for_losses(maker, **arguments)


def _accumulation(maker: Maker, seed: int, _base_bytes: int, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from headrace.train.search.accumulation import check_accumulation
    from headrace.train.search.recipe import make_recipe

    recipe = make_recipe(maker, seed)
    count = arguments["micro_batches"]
    size = arguments["micro_batch_size"] or max(1, recipe.batch_size // count)
    if count * size > len(recipe.data):
        raise SettingsError(
            f"the data set has {len(recipe.data)} samples, expected at least {count} micro-batches of {size}; ask for fewer"
        )
    yield check_accumulation(recipe, micro_batches=count, micro_batch_size=size, with_ddp=arguments["with_ddp"])


def _precision(maker: Maker, seed: int, _base_bytes: int, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from headrace.train.search.precision import check_precision
    from headrace.train.search.recipe import make_recipe

    recipe = make_recipe(maker, seed)
    size = min(recipe.batch_size, len(recipe.data), arguments["most_samples"])
    yield check_precision(recipe, dtype=arguments["dtype"], batch_size=size)


def _activations(maker: Maker, seed: int, _base_bytes: int, _arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from headrace.train.search.recipe import make_recipe
    from headrace.train.search.saved_bytes import measure_units

    recipe = make_recipe(maker, seed)
    size = min(recipe.batch_size, len(recipe.data))
    units, rest, sizes = measure_units(recipe, size)
    yield {
        "batch_size": size,
        "units": [(unit.name, unit.kind, list(unit.saved), list(unit.taken), unit.forward_seconds) for unit in units],
        "rest": list(rest),
        "sizes": list(sizes.items()),
    }


#: {name: yields results}. Called with the function that makes the recipe, the seed, resident bytes before it, and arguments.
TASKS: dict[str, Callable[[Maker, int, int, dict[str, Any]], Iterator[dict[str, Any]]]] = {
    "accumulation": _accumulation,
    "activations": _activations,
    "describe": _describe,
    "losses": _losses,
    "precision": _precision,
    "steps": _steps,
}


def _load_torch() -> None:
    """Load what PyTorch loads late, before memory is noted: it is there whatever the batch size."""
    import torch

    weights = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.0)
    weights.sum().backward()
    optimizer.step()


def _run(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    _load_torch()

    from headrace.train.search.process_memory import read_status
    from headrace.train.search.recipe import load_maker

    maker = load_maker(request["recipe"])
    base = read_status("VmRSS")
    for result in TASKS[request["task"]](maker, request["seed"], base, request["arguments"]):
        tell(result)


def main(request_file: str, answer_file: str, parent: str) -> int:
    """Do what the request asks for; return the exit status."""
    if not die_with_parent(int(parent)):
        return 1
    request = decode_document(Path(request_file).read_bytes(), dict[str, Any])
    os.dup2(2, 1)
    with open(answer_file, "ab", buffering=0) as answer:

        def tell(result: dict[str, Any]) -> None:
            answer.write(encode_document(result) + b"\n")

        try:
            _run(request, tell)
        except KeyboardInterrupt:
            return 130
        except (Exception, SystemExit) as error:
            text = f"{type(error).__name__}: {error}"
            is_memory = isinstance(error, MemoryError) or bool(SIGNS_OF_NO_MEMORY.search(text))
            kind = "out of memory" if is_memory else "settings" if isinstance(error, SettingsError) else "error"
            lines = hide_secrets_in_text(traceback.format_exc()) if kind == "error" else ""
            tell(
                {
                    "error": hide_secrets_in_text(str(error)) if kind == "settings" else text_of(error),
                    "kind": kind,
                    "traceback": lines,
                }
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
