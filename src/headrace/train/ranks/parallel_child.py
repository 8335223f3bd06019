"""One rank that trains a recipe in several ways: `python -m headrace.train.ranks.parallel_child REQUEST ANSWER`.

How this works: all ways are trained by the same processes, in turn, round by round, so that what else the machine does meets
them alike. Each way has a model of its own, made with the same random numbers, and every step has the same batch. Before the
steps of a pipeline, each rank times its stage while the others wait: that is what its bubble is predicted from. Rank 0 writes
ANSWER anew after each round, so an interrupt costs one round.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from headrace.base.documents import decode_document, encode_document
from headrace.base.errors import HeadraceError, SettingsError
from headrace.base.parent_death import die_with_parent
from headrace.diagnose.training.pipeline_bubble import find_cuts
from headrace.runs.formats.parallel import StageTimes, Way
from headrace.train.search.own_time import read_clocks
from headrace.train.search.recipe import Recipe, load_maker, make_recipe

#: Passes of a stage, or messages, before those that are timed, and those.
_WARM_UP, _TIMED = 2, 5
#: More passes of a stage are timed where they are short: a bubble of a tenth is lost in one hundredth of a pass.
_PASSES_SECONDS, _MOST_PASSES = 0.5, 42
_LEAVE_SECONDS = 0.5
#: So long before ranks are ended because time is up they say where they are.
_TELL_SECONDS = 1.0
#: Files whose frames tell a user nothing about the recipe.
_NOT_THE_USERS = (f"{Path(__file__).parents[2]}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}", "<frozen ")
#: A receiver that asks so much later finds a message sent.
_LATE_SECONDS = 0.005


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to train."""

    recipe: str
    micro_batches: int
    steps: int
    """Of each way in each round, besides the first."""
    rounds: int
    seed: int
    threads: int
    deadline: float
    """When they are taken to hang, on the host's monotonic clock."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one rank; times are seconds on the host's clock."""

    began: float
    computed: float
    """Forward and backward passes are done."""
    ended: float
    busy: float
    """Seconds in which this rank computed, of those between `began` and `computed`."""
    kept: int
    loss: float | None
    """None: another rank knows it."""
    core_wait: float = 0.0
    """Seconds of them in which this rank could compute and had no core."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a way until now."""

    way: Way
    steps: list[list[Step]]
    """Of each rank."""
    stages: list[StageTimes]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 writes."""

    batch_size: int
    asked_size: int
    """That of the recipe, or all samples if there are fewer."""
    found: list[Found]
    left_out: str
    """Why parts of the model are not on ranks of their own; empty: they are."""
    unused: list[str] = []
    """Parameters that get no gradient."""


class _AskedError(Exception):
    """The loss has called the model: with this."""


class _Asks(torch.nn.Module):  # type: ignore[misc]
    def forward(self, *inputs: Any) -> Any:
        """Say what the model would get."""
        raise _AskedError(*inputs)


class _Answers(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_inputs: Any) -> torch.Tensor:
        """Return what the last stage made."""
        return self._output


def find_input(recipe: Recipe, batch: Any) -> torch.Tensor:
    """Return what the recipe's loss calls the model with.

    Raises:
        SettingsError: If that is not one tensor.
    """
    given: tuple[Any, ...] = ()
    try:
        recipe.loss(_Asks(), batch)
    except _AskedError as asked:
        given = asked.args
    except TypeError:  # by keyword
        pass
    if len(given) != 1 or not isinstance(given[0], torch.Tensor):
        raise SettingsError(
            "`loss` of the recipe does not call its model with one tensor and nothing else: what it gives cannot be sent from "
            "stage to stage; expected such as loss_function(model(inputs), targets)"
        )
    return given[0]


class TimedStage(PipelineStage):  # type: ignore[misc]
    """A stage that counts the seconds of its passes, those in which a core computes, and the micro-batches that it keeps."""

    busy, core, kept, most_kept, done = 0.0, 0.0, 0, 0, 0.0

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a forward pass."""
        self.kept += 1
        self.most_kept = max(self.most_kept, self.kept)
        began, core = time.perf_counter(), time.thread_time()
        try:
            return super().forward_one_chunk(*args, **kwargs)
        finally:
            self.busy += time.perf_counter() - began
            self.core += time.thread_time() - core

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a backward pass."""
        began, core = time.perf_counter(), time.thread_time()
        try:
            return super().backward_one_chunk(*args, **kwargs)
        finally:
            self.busy += time.perf_counter() - began
            self.core += time.thread_time() - core
            self.kept -= 1

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Divide the gradients: that is no pass, and counts with the update."""
        self.done = time.monotonic()
        super().perform_reduce_grad(grad_scale_factor)


class _Hollow(torch.nn.Module):  # type: ignore[misc]
    """Gives tensors like those of a stage, and computes next to nothing."""

    def __init__(self, output: torch.Tensor) -> None:
        super().__init__()
        self._shape = output.shape
        self._weight = torch.nn.Parameter(torch.zeros((), dtype=output.dtype))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return a tensor that depends on the input."""
        return (values.flatten()[:1].sum() + self._weight).expand(self._shape).contiguous()


class _Whole:
    """The whole model on this rank, alone or with a share of the batch."""

    def __init__(self, request: Request, *, shares: bool, has_unused: bool = False) -> None:
        recipe = make_recipe(load_maker(request.recipe), request.seed)
        self._recipe = recipe
        self.stages: list[StageTimes] = []
        self._model: Any = recipe.model
        samples: Sequence[int] = range(batch_size(recipe, request))
        if shares:
            self._model = torch.nn.parallel.DistributedDataParallel(recipe.model, find_unused_parameters=has_unused)
            samples = samples[dist.get_rank() :: dist.get_world_size()]
        self._batch = recipe.make_batch(samples)
        self._optimizer = recipe.optimizer(self._model.parameters())

    def step(self) -> Step:
        """Train a step."""
        began = time.monotonic()
        loss = self._recipe.loss(self._model, self._batch)
        loss.backward()
        computed = time.monotonic()
        self._optimizer.step()
        self._optimizer.zero_grad()
        ended = time.monotonic()
        return Step(
            began=began, computed=computed, ended=ended, busy=computed - began, kept=1, loss=float(loss.detach())
        )


class _Pipelined:
    """A part of the model on this rank."""

    def __init__(self, request: Request, way: Way) -> None:
        recipe = make_recipe(load_maker(request.recipe), request.seed)
        self._recipe, self._rank, self._ranks = recipe, dist.get_rank(), dist.get_world_size()
        self._count = count = 1 if way is Way.MODEL else request.micro_batches
        size = batch_size(recipe, request) // count
        self._batches = [recipe.make_batch(range(number * size, (number + 1) * size)) for number in range(count)]
        inputs = [find_input(recipe, batch) for batch in self._batches]
        if len({one.shape for one in inputs}) > 1:
            raise SettingsError(
                f"micro-batches have inputs of shapes {sorted({tuple(one.shape) for one in inputs})}; expected one shape: let "
                "`collate` of the recipe pad to a fixed length"
            )
        self._input = torch.cat(inputs) if self._rank == 0 else None
        children = find_layers(recipe.model)
        cuts = [0, *_agree(lambda: _cut(recipe, children, inputs[0], self._batches[0], self._ranks)), len(children)]
        own = children[cuts[self._rank] : cuts[self._rank + 1]]
        self._module = torch.nn.Sequential(*(child for _, child in own))
        self.stages = self._time_schedule(self._time_stages([name for name, _ in own], inputs[0]))
        self._stage = TimedStage(self._module, self._rank, self._ranks, recipe.device)
        schedule = Schedule1F1B if way is Way.ONE_F_ONE_B else ScheduleGPipe
        self._schedule = schedule(self._stage, count, loss_fn=self._compute_loss)
        is_trained = any(value.requires_grad for value in self._module.parameters())
        self._optimizer = recipe.optimizer(self._module.parameters()) if is_trained else None

    def step(self) -> Step:
        """Train a step."""
        stage, losses = self._stage, []  # type: ignore[var-annotated]
        is_last = self._rank == self._ranks - 1
        stage.busy, stage.most_kept = 0.0, 0
        given = () if self._input is None else (self._input,)
        wanted = {"target": torch.arange(self._count), "losses": losses} if is_last else {}
        began = time.monotonic()
        self._schedule.step(*given, return_outputs=False, **wanted)
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()
        return Step(
            began=began,
            computed=stage.done,
            ended=time.monotonic(),
            busy=stage.busy,
            kept=stage.most_kept,
            loss=float(torch.stack(losses).detach().mean()) if is_last else None,
        )

    def _compute_loss(self, output: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        loss: torch.Tensor = self._recipe.loss(_Answers(output), self._batches[int(number)])
        self._stage.busy += time.perf_counter() - began
        return loss

    def _time_stages(self, names: Sequence[str], first: torch.Tensor) -> list[StageTimes]:
        """Return what each stage takes while the others wait, and a message to the next one."""
        mine, given = None, first
        for rank in range(self._ranks):
            own = given
            if rank == self._rank:
                mine, output = self._time_stage(given)
                self._output = output
                given = torch.empty_like(output)
            shape = _tell(None if rank != self._rank else (tuple(given.shape), given.dtype), rank)
            given = given if rank == self._rank else torch.zeros(shape[0], dtype=shape[1])
            link = _time_messages(given, rank, partial(self._module, own)) if rank + 1 < self._ranks else (0.0, 0.0)
            if rank == self._rank:
                transfer, fetch = link
        assert mine is not None
        forward, backward, forward_core, backward_core = mine
        own = StageTimes(
            layers=tuple(names), forward_seconds=forward, backward_seconds=backward,
            forward_core_seconds=min(forward, forward_core), backward_core_seconds=min(backward, backward_core),
            transfer_seconds=transfer, fetch_seconds=fetch,
        )  # fmt: skip
        return _gather(own)

    def _time_schedule(self, stages: Sequence[StageTimes]) -> list[StageTimes]:
        """Return the stages with what the schedule takes for each pass: hollow ones are trained, with messages as large.

        CPU time is counted: waiting for another stage, or for a core, is in the simulation already.
        """
        stage = TimedStage(_Hollow(self._output), self._rank, self._ranks, self._recipe.device)
        schedule = ScheduleGPipe(stage, self._count, loss_fn=lambda output, _: output.mean())
        given = () if self._input is None else (self._input,)
        wanted = {"target": torch.arange(self._count)} if self._rank == self._ranks - 1 else {}
        within, around = [], []
        for _ in range(_WARM_UP + _TIMED):
            dist.barrier()
            stage.core, began = 0.0, time.thread_time()
            schedule.step(*given, return_outputs=False, **wanted)
            within.append(stage.core / (2 * self._count))
            around.append((time.thread_time() - began) / (2 * self._count) - within[-1])
        told = _gather((statistics.median(within[_WARM_UP:]), statistics.median(around[_WARM_UP:])))
        pass_seconds, between_seconds = (statistics.mean(values) for values in zip(*told, strict=True))
        return [
            msgspec.structs.replace(one, pass_seconds=pass_seconds, between_seconds=between_seconds) for one in stages
        ]

    def _time_stage(self, given: torch.Tensor) -> tuple[list[float], torch.Tensor]:
        """Return the usual seconds of a forward and of a backward pass, those of a core in each, and the output."""
        is_last = self._rank == self._ranks - 1
        passes: list[list[float]] = []
        until = time.perf_counter() + _PASSES_SECONDS
        while len(passes) < _WARM_UP + _TIMED or (len(passes) < _MOST_PASSES and time.perf_counter() < until):
            values = given.detach().clone()
            if self._rank:
                values.requires_grad_()
            clocks = [(time.perf_counter(), time.thread_time())]
            output = self._module(values)
            final = self._recipe.loss(_Answers(output), self._batches[0]) if is_last else output
            clocks.append((time.perf_counter(), time.thread_time()))
            if final.requires_grad:  # nothing of a frozen first stage does
                final.backward(None if is_last else torch.ones_like(final))
            clocks.append((time.perf_counter(), time.thread_time()))
            passes.append(
                [end - begin for clock in zip(*clocks, strict=True) for begin, end in itertools.pairwise(clock)]
            )
        self._module.zero_grad()
        return [usual_of(seconds) for seconds in zip(*passes[_WARM_UP:], strict=True)], output.detach()


def usual_of(seconds: Sequence[float]) -> float:
    """Return the mean without the slowest and fastest tenth, of three one at least: slow passes count, accidents do not."""
    cut = max(len(seconds) // 10, int(len(seconds) > 2))
    return statistics.fmean(sorted(seconds)[cut : len(seconds) - cut])


def batch_size(recipe: Recipe, request: Request) -> int:
    """Return the samples of a step: the recipe's, or somewhat fewer that ranks and micro-batches can share evenly.

    Raises:
        SettingsError: If there are too few.
    """
    ranks, count = dist.get_world_size(), request.micro_batches
    least = next(
        number for number in range(max(ranks, count), ranks * count + 1) if not (number % ranks or number % count)
    )
    found = _asked_size(recipe) // least * least
    if not found:
        raise SettingsError(
            f"a batch of {_asked_size(recipe)} cannot be shared by {ranks} ranks and cut into {count} "
            f"micro-batches; expected {least} samples or more: raise `batch_size` of the recipe, or ask for fewer micro-batches"
        )
    return found


def _asked_size(recipe: Recipe) -> int:
    return min(recipe.batch_size, len(recipe.data))


def find_obstacle(model: Any, ranks: int) -> str:
    """Return why a model cannot be cut into stages; empty: it can."""
    if not isinstance(model, torch.nn.Sequential):
        return f"the model is a {type(model).__name__}, and only a torch.nn.Sequential can be cut into stages"
    if len(model) < ranks:
        return f"the model has {len(model)} layers, too few for {ranks} stages"
    owners: dict[int, str] = {}
    for name, layer in find_layers(model):
        for kind, tensors in (("parameter", layer.named_parameters()), ("buffer", layer.named_buffers())):
            for inner, tensor in tensors:
                owner = owners.setdefault(id(tensor), name)
                if owner != name:
                    return (
                        f"layers {owner} and {name} of the model share the {kind} {name}.{inner}, and ranks of their own would "
                        "each train a copy"
                    )
    return ""


def find_layers(model: Any) -> list[tuple[str, Any]]:
    """Return the layers of a Sequential with their names; one that comes twice too, which `named_children` leaves out."""
    found = model.named_modules(remove_duplicate=False)
    return [(name, layer) for name, layer in found if name and "." not in name]


def find_unused(recipe: Recipe, samples: Iterable[int]) -> list[str]:
    """Return the parameters to which a training step gives no gradient.

    Raises:
        SettingsError: If it gives none to any.
    """
    trained = {name: value for name, value in recipe.model.named_parameters() if value.requires_grad}
    if not trained:
        raise SettingsError(
            "no parameter of the recipe's model requires a gradient, so there is nothing to train; call requires_grad_(True) "
            "on those that you train"
        )
    loss = recipe.loss(recipe.model, recipe.make_batch(samples))
    if not loss.requires_grad:
        raise SettingsError(
            "`loss` of the recipe returned a tensor without a gradient: is the model's output detached, or computed under "
            "torch.no_grad()?"
        )
    loss.backward()
    unused = [name for name, value in trained.items() if value.grad is None]
    recipe.model.zero_grad()
    return unused


def _cut(recipe: Recipe, children: Sequence[tuple[str, Any]], given: Any, batch: Any, ranks: int) -> list[int]:
    """Return where stages begin, by what each layer takes for a micro-batch here."""
    seconds = []
    for name, child in children:
        took = []
        for _ in range(_WARM_UP + _TIMED):
            values = given.detach().clone()
            if values.is_floating_point():
                values.requires_grad_()
            began = time.perf_counter()
            output = child(values)
            if not isinstance(output, torch.Tensor):
                raise SettingsError(
                    f"layer {name} of the model gives a {type(output).__name__}, and only one tensor can be sent from stage to "
                    "stage; expected layers that take and give one tensor: join this one with the next in one Sequential"
                )
            if output.requires_grad:
                output.backward(torch.ones_like(output))
            took.append(time.perf_counter() - began)
        seconds.append(statistics.median(took[_WARM_UP:]))
        given = output
    recipe.model.zero_grad()
    return find_cuts(seconds, ranks)


def _agree(find: Any) -> Any:
    """Return what rank 0 finds, on all ranks."""
    return _tell(find() if dist.get_rank() == 0 else None, 0)


def _tell(value: Any, rank: int) -> Any:
    """Return the value of a rank, on all ranks."""
    held = [value]
    dist.broadcast_object_list(held, src=rank)
    return held[0]


def _gather(value: Any) -> list[Any]:
    """Return the values of all ranks, on all ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def _time_messages(values: torch.Tensor, rank: int, work: Callable[[], object]) -> tuple[float, float]:
    """Return what a tensor takes from a rank to the next one, which waits for it as in a pipeline, and one that has come late.

    A rank that has waited for long is slower to go on than one that gets message after message, so the sender works first.
    Ranks of one host share the clock. A message that nobody waits for does not go until it is asked for: what it takes then
    is not hidden by what the receiver computes.

    Args:
        values: As large as the tensor.
        rank: That sends.
        work: What it does before.
    """
    here = dist.get_rank()
    sent: list[float] = []
    came: list[float] = []
    late: list[float] = []
    with torch.no_grad():
        for _ in range(_WARM_UP + _TIMED if here in (rank, rank + 1) else 0):
            if here == rank:
                work()
                sent.append(time.monotonic())
                dist.send(values, rank + 1)
                dist.send(values, rank + 1)
            else:
                dist.recv(values, rank)
                came.append(time.monotonic())
                time.sleep(_LATE_SECONDS)
                began = time.monotonic()
                dist.recv(values, rank)
                late.append(time.monotonic() - began)
    told = _gather((sent, came, late))
    return middle_of_messages(told[rank][0], told[rank + 1][1]), statistics.median(told[rank + 1][2][_WARM_UP:])


def middle_of_messages(sent: Sequence[float], came: Sequence[float]) -> float:
    """Return the middle seconds of a message, without the first ones.

    Args:
        sent: When each was sent.
        came: When each had come, on the same clock.
    """
    return statistics.median([end - begin for begin, end in zip(sent, came, strict=True)][_WARM_UP:])


@dataclass(slots=True)
class _Trained:
    """A way on this rank."""

    way: Way
    training: _Whole | _Pipelined | None
    """None: this rank has nothing to do in it."""
    steps: list[Step]
    is_warm: bool = False
    """It has made its first step."""


def _make(request: Request, way: Way, *, has_unused: bool) -> _Trained:
    if way is Way.ONE:
        training: Any = _Whole(request, shares=False) if dist.get_rank() == 0 else None
    elif way is Way.DATA:
        training = _Whole(request, shares=True, has_unused=has_unused)
    else:
        training = _Pipelined(request, way)
    dist.barrier()
    return _Trained(way, training, [])


def _train(trained: _Trained, steps: int) -> None:
    """Train steps that all ranks begin together; the first one of all is not kept, in which buffers are made."""
    for _ in range(steps if trained.is_warm else steps + 1):
        dist.barrier()
        step = None if trained.training is None else _step(trained.training)
        if step is not None and trained.is_warm:
            trained.steps.append(step)
        trained.is_warm = True
    dist.barrier()


def _step(training: _Whole | _Pipelined) -> Step:
    """Train a step, and say how long this rank had no core meanwhile."""
    before = read_clocks()[1]
    step = training.step()
    return msgspec.structs.replace(step, core_wait=read_clocks()[1] - before)


def main(request_file: str, answer_file: str) -> None:
    """Train every way, and write what was measured."""
    if not die_with_parent(int(os.environ["HEADRACE_TRAIN_PARENT"])):
        sys.exit(1)
    request = decode_document(Path(request_file).read_bytes(), Request)
    faulthandler.enable(all_threads=False)  # a crash in C says no line of the recipe otherwise
    faulthandler.dump_traceback_later(max(_TELL_SECONDS, request.deadline - time.monotonic() - _TELL_SECONDS))
    torch.set_num_threads(request.threads)
    dist.init_process_group("gloo")
    recipe = make_recipe(load_maker(request.recipe), request.seed)
    own = range(batch_size(recipe, request))[dist.get_rank() :: dist.get_world_size()]
    unused = sorted({name for names in _gather(find_unused(recipe, own)) for name in names})
    left_out = find_obstacle(recipe.model, dist.get_world_size())
    chosen = (Way.ONE, Way.DATA) if left_out else tuple(Way)
    all_ways = [_make(request, way, has_unused=bool(unused)) for way in chosen]
    for _ in range(request.rounds):
        for trained in all_ways:
            _train(trained, request.steps)
        found = [
            Found(
                way=trained.way,
                steps=[steps for steps in _gather(trained.steps) if steps],
                stages=[] if trained.training is None else trained.training.stages,
            )
            for trained in all_ways
        ]
        if dist.get_rank() == 0:
            answer = Answer(
                batch_size=batch_size(recipe, request), asked_size=_asked_size(recipe), found=found, left_out=left_out,
                unused=unused,
            )  # fmt: skip
            Path(f"{answer_file}.partial").write_bytes(encode_document(answer))
            os.replace(f"{answer_file}.partial", answer_file)
    dist.barrier()
    time.sleep(_LEAVE_SECONDS)  # other ranks still read what this one has sent


def _end(error: BaseException | None) -> NoReturn:
    """End this process without ending the group of ranks: destroying one that pipelines have used was seen to wait for ever."""
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):  # of the user's code
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    elif isinstance(error, HeadraceError):  # what is wrong with the recipe: no traceback of ours says more
        print(error, file=sys.stderr)
    elif error is not None:
        print(_describe(error), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _describe(error: BaseException) -> str:
    """Return a traceback that begins where the user's code does: a long one would hide that line."""
    told = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = told
    while one is not None:
        users = [frame for frame in one.stack if not frame.filename.startswith(_NOT_THE_USERS)]
        one.stack = traceback.StackSummary.from_list(users or one.stack)
        one = one.__cause__ or one.__context__
    return "".join(told.format()).rstrip()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException as error:
        _end(error)
    _end(None)
