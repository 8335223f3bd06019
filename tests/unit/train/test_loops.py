"""Loops of PyTorch, each as its author would write it, and what is recorded of them."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.full  # importing torch takes a second

from torch.nn.functional import mse_loss  # noqa: E402

from headrace.base.records import Span  # noqa: E402
from headrace.runs.training_phases import Kind, Phase, Stretch  # noqa: E402
from headrace.train.loader_watch import WatchedLoader  # noqa: E402
from headrace.train.recorder import Recorder, StretchSpans  # noqa: E402
from headrace.train.torch_hooks import TorchHooks  # noqa: E402


class Watched:
    """A model, a loader of six batches of four, and what is recorded while the block lasts."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.stretches: list[list[Span]] = []
        self.recorder = Recorder(self._keep)
        self.hooks = TorchHooks(self.recorder)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
        self.data = torch.utils.data.TensorDataset(torch.randn(24, 3), torch.randn(24, 1))
        self.loader = self.watch(batch_size=4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.criterion = torch.nn.MSELoss()

    def _keep(self, spans: Sequence[Span]) -> None:
        if isinstance(spans, StretchSpans):  # not those of what loading cost
            self.stretches.append(list(spans))

    def watch(self, batch_size: int) -> WatchedLoader:
        """A loader of the data that is watched."""
        return WatchedLoader(torch.utils.data.DataLoader(self.data, batch_size=batch_size), self.recorder)

    def learn(self, x: Any, y: Any) -> None:
        """Forward and backward."""
        self.criterion(self.model(x), y).backward()

    def update(self) -> None:
        """The optimizer."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def end(self) -> None:
        """Stop, and check what holds for every loop: no gap and no overlap, anywhere."""
        self.hooks.detach()
        self.recorder.close()
        wholes = [spans[0] for spans in self.stretches]
        assert all(one.ended == other.started for one, other in itertools.pairwise(wholes))
        for whole, *phases in self.stretches:
            assert (phases[0].started, phases[-1].ended) == (whole.started, whole.ended)
            assert all(one.ended == other.started for one, other in itertools.pairwise(phases))

    def wholes(self, unit: Stretch = Stretch.STEP) -> list[Span]:
        """The span of each stretch of a unit."""
        return [spans[0] for spans in self.stretches if spans[0].unit == unit]

    def samples(self, unit: Stretch = Stretch.STEP) -> list[int | None]:
        """The samples of each stretch of a unit."""
        return [span.batch_size for span in self.wholes(unit)]

    def kinds(self) -> list[str | None]:
        """What sets each step apart."""
        return [span.release_reason for span in self.wholes()]

    def phases(self, number: int) -> list[str]:
        """The phases of a step, in order."""
        steps = [spans for spans in self.stretches if spans[0].unit == Stretch.STEP]
        return [span.stage for span in steps[number][1:]]


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Hooks are gone after the test, whatever happens."""
    it = Watched()
    yield it
    it.hooks.detach()


PLAIN = [*("wait", "prepare", "forward", "loss", "backward", "before_update", "optimizer", "after")]


def test_plain(watched: Watched) -> None:
    """A loss that is a module is no second forward pass, and no batch of its own."""
    for x, y in watched.loader:
        watched.learn(x, y)
        watched.update()
    watched.end()
    assert watched.samples() == [4] * 6
    assert watched.kinds() == [Kind.EPOCH_START] + [None] * 5
    assert watched.phases(1) == watched.phases(5) == PLAIN


def test_accumulation(watched: Watched) -> None:
    """Three batches before each update are one step."""
    for number, (x, y) in enumerate(watched.loader):
        watched.learn(x, y)
        if number % 3 == 2:
            watched.update()
    watched.end()
    assert watched.samples() == [12, 12]
    assert Counter(watched.phases(1))["backward"] == 3
    assert watched.kinds() == [Kind.EPOCH_START, None]


def test_bfloat16(watched: Watched) -> None:
    """Autocast changes nothing of how a step is cut."""
    for x, y in watched.loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = watched.criterion(watched.model(x).float(), y)
        loss.backward()
        watched.update()
    watched.end()
    assert watched.samples() == [4] * 6
    assert watched.phases(2) == PLAIN


def test_validation_with_another_loader(watched: Watched) -> None:
    """Its batches never land on a training step (traceml #304)."""
    other = watched.watch(batch_size=12)
    for _ in range(2):
        for x, y in watched.loader:
            watched.learn(x, y)
            watched.update()
        watched.model.eval()
        with torch.no_grad():
            for x, _y in other:
                watched.model(x)
        watched.model.train()
    watched.end()
    assert watched.samples() == [4] * 12
    assert watched.samples(Stretch.VALIDATION) == [12] * 4
    assert Counter(watched.kinds()) == {None: 10, Kind.EPOCH_START: 2}


def test_validation_with_the_same_loader(watched: Watched) -> None:
    """Every third batch is looked at without learning from it."""
    for number, (x, y) in enumerate(watched.loader):
        if number % 3 == 2:
            with torch.no_grad():
                watched.model(x)
        else:
            watched.learn(x, y)
            watched.update()
    watched.end()
    assert watched.samples() == [4] * 4
    assert watched.samples(Stretch.VALIDATION) == [4] * 2


def test_validation_of_a_batch_that_is_kept(watched: Watched) -> None:
    """The step ends where it begins, although no batch was asked for."""
    kept = torch.randn(9, 3)
    for number, (x, y) in enumerate(watched.loader):
        watched.learn(x, y)
        watched.update()
        if number % 3 == 2:
            with torch.no_grad():
                watched.model(kept)
                watched.model(kept)
    watched.end()
    assert watched.samples() == [4] * 6
    assert len(watched.wholes(Stretch.VALIDATION)) == 2
    assert watched.phases(2) == PLAIN


def test_training_in_eval_mode(watched: Watched) -> None:
    """A model whose statistics are frozen learns all the same."""
    watched.model.eval()
    for x, y in watched.loader:
        watched.learn(x, y)
        watched.update()
    watched.end()
    assert watched.samples() == [4] * 6
    assert not watched.wholes(Stretch.VALIDATION)


@pytest.mark.parametrize("place", ["forward", "backward", "optimizer"])
def test_an_exception_that_the_loop_goes_on_after(
    place: str, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is marked as failed, and nothing of it is in the next one (traceml #451)."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("enough")

    for number, (x, y) in enumerate(watched.loader):
        with monkeypatch.context() as patched:
            if number == 2:
                target = {"forward": watched.model[0], "backward": torch.autograd.graph, "optimizer": watched.optimizer}
                name = {"forward": "forward", "backward": "_engine_run_backward", "optimizer": "_init_group"}[place]
                owner: Any = torch.autograd if place == "backward" else target[place]
                patched.setattr(owner, name, fail)
            try:
                watched.learn(x, y)
                watched.update()
            except RuntimeError:
                continue
    watched.end()
    assert watched.samples() == [4] * 6
    assert [step.outcome for step in watched.wholes()] == ["ok", "ok", "failed", "ok", "ok", "ok"]
    assert watched.phases(3) == PLAIN


def test_an_epoch_boundary(watched: Watched) -> None:
    """The start of each epoch is a stretch of its own; its first batch is said to be one (traceml #458)."""
    for _ in range(3):
        for x, y in watched.loader:
            watched.learn(x, y)
            watched.update()
    watched.end()
    assert watched.kinds() == ([Kind.EPOCH_START] + [None] * 5) * 3
    starts = [spans for spans in watched.stretches if any(span.stage == Phase.EPOCH_START for span in spans)]
    assert [spans[0].unit for spans in starts] == [Stretch.BETWEEN] * 3


def test_a_loader_of_a_background_thread(watched: Watched) -> None:
    """What that thread waits for is no wait of the thread that trains (traceml #463)."""
    ready: queue.Queue[Any] = queue.Queue()

    def load() -> None:
        for batch in watched.loader:
            ready.put(batch)
        ready.put(None)

    thread = threading.Thread(target=load)
    thread.start()
    while (batch := ready.get()) is not None:
        watched.learn(*batch)
        watched.update()
    thread.join()
    watched.end()
    assert len(watched.wholes()) == 6
    assert not [phase for number in range(6) for phase in watched.phases(number) if phase == Phase.WAIT]


def test_training_in_a_thread(watched: Watched) -> None:
    """It need not be the first thread that trains."""

    def work() -> None:
        for x, y in watched.loader:
            watched.learn(x, y)
            watched.update()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    watched.end()
    assert watched.samples()[1:] == [4] * 5
    assert watched.phases(3) == PLAIN


def test_gradients_that_a_thread_computes_first(watched: Watched) -> None:
    """A thread that changes data by their gradients, and lives on, does not hide the loop that trains."""
    teacher = torch.nn.Linear(3, 1)

    def sharpen() -> None:
        teacher(torch.randn(4, 3, requires_grad=True)).sum().backward()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(sharpen).result()
        for x, y in watched.loader:
            threads.submit(sharpen).result()
            watched.learn(x, y)
            watched.update()
        watched.end()
    assert watched.samples() == [4] * 5
    assert watched.phases(2) == PLAIN


def test_two_models_with_two_optimizers(watched: Watched) -> None:
    """A GAN makes one step of each batch: both updates belong to it."""
    judge = torch.nn.Linear(1, 1)
    other = torch.optim.Adam(judge.parameters())
    for x, _ in watched.loader:
        other.zero_grad()
        judge(watched.model(x).detach()).mean().backward()
        other.step()
        watched.optimizer.zero_grad()
        judge(watched.model(x)).mean().backward()
        watched.optimizer.step()
    watched.end()
    assert watched.samples() == [4] * 6
    assert watched.kinds()[1:] == [None] * 5
    assert Counter(watched.phases(4))["optimizer"] == 2
    assert len(watched.hooks.optimizers) == 2


def test_one_batch_learnt_again_and_again(watched: Watched) -> None:
    """Each update of the one optimizer is a step, also if no batch is asked for."""
    x, y = next(iter(watched.loader))
    for _ in range(5):
        watched.learn(x, y)
        watched.update()
    watched.end()
    assert len(watched.wholes()) == 5
    assert watched.phases(3) == PLAIN[2:]


def test_a_scaler_that_leaves_the_update_out(watched: Watched) -> None:
    """Infinite gradients end the step as others do; the next one has its own batch only."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number, (x, y) in enumerate(watched.loader):
        watched.optimizer.zero_grad()
        loss = watched.criterion(watched.model(x), y)
        scaler.scale(loss * (float("inf") if number == 2 else 1.0)).backward()
        scaler.step(watched.optimizer)
        scaler.update()
    watched.end()
    assert watched.samples() == [4] * 6
    assert watched.phases(2) == watched.phases(3) == PLAIN


@pytest.mark.parametrize("is_loaded", [True, False])
def test_an_optimizer_that_calls_the_model(is_loaded: bool, watched: Watched) -> None:
    """LBFGS evaluates the loss within its step, several times; it remains one step."""
    optimizer = torch.optim.LBFGS(watched.model.parameters(), max_iter=3)
    kept = torch.randn(4, 3), torch.randn(4, 1)

    for x, y in watched.loader if is_loaded else [kept] * 6:

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = watched.criterion(watched.model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    watched.end()
    assert len(watched.wholes()) == 6
    assert all("before_update" not in watched.phases(number) for number in range(6))
    assert Counter(watched.phases(2))["forward"] > 1


def test_activation_checkpointing(watched: Watched) -> None:
    """A forward pass that is computed again lies in the backward pass, and finds no new outermost module."""
    from torch.utils.checkpoint import checkpoint

    for is_reentrant in (False, True):
        for x, y in watched.loader:
            hidden = watched.model[0](x) if is_reentrant else x
            checkpointed = checkpoint(
                watched.model[1:] if is_reentrant else watched.model, hidden, use_reentrant=is_reentrant
            )
            mse_loss(checkpointed, y).backward()
            watched.update()
    watched.end()
    assert watched.samples() == [4] * 12
    assert watched.phases(2) == PLAIN
    assert [phase for phase in watched.phases(8) if phase in ("backward", "before_update")] == [
        "backward",
        "before_update",
    ]


def test_an_inner_module_that_is_called_directly(watched: Watched) -> None:
    """Once a step shows that its forward pass is not seen, it is looked for again."""
    for number, (x, y) in enumerate(watched.loader):
        output = watched.model(x) if number < 2 else watched.model[2](watched.model[1](watched.model[0](x)))
        watched.criterion(output, y).backward()
        watched.update()
    watched.end()
    assert watched.samples() == [4] * 6
    assert ["forward" in watched.phases(number) for number in range(6)] == [True, True, False, True, True, True]


def test_a_new_model_in_the_second_epoch(watched: Watched) -> None:
    """It is found where the epoch begins, and is one of the outermost modules from then on."""
    for x, y in watched.loader:
        watched.learn(x, y)
        watched.update()
    second = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(second.parameters(), lr=0.1)
    for x, y in watched.loader:
        watched.criterion(second(x), y).backward()
        optimizer.step()
    watched.end()
    assert all("forward" in watched.phases(number) for number in range(12))
    assert watched.hooks.modules == [watched.model, second]


def test_a_compilation_sets_its_step_apart(watched: Watched) -> None:
    """The step in which `torch.compile` compiles, and the one in which it does so again, are not plain."""
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    model = torch.compile(watched.model, backend="eager", dynamic=False)
    for number, (x, y) in enumerate(watched.loader):
        if number == 4:
            x, y = x[:3], y[:3]
        watched.criterion(model(x), y).backward()
        watched.update()
    watched.end()
    kinds = watched.kinds()
    assert (kinds[0], kinds[4]) == (Kind.RECOMPILED, Kind.RECOMPILED)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 2, "our hooks made it compile again"
    assert (kinds[2], kinds[3], kinds[5]) == (None, None, None)
    assert all("forward" in watched.phases(number) for number in range(6))


def test_a_forward_pass_that_is_no_module(watched: Watched) -> None:
    """Steps of a model of bare tensors are seen; that the forward pass is not apart is said."""
    weight = torch.zeros(3, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        for x, y in watched.loader:
            mse_loss(x @ weight, y).backward()
            optimizer.step()
    watched.end()
    assert watched.samples() == [4] * 12
    assert watched.phases(3) == ["wait", "prepare", "backward", "before_update", "optimizer", "after"]
    assert "the forward pass is part of `prepare`" in watched.recorder.not_measured["forward"]


def test_several_backward_passes(watched: Watched) -> None:
    """A graph that is kept for a second pass makes no second step."""
    for x, y in watched.loader:
        loss = watched.criterion(watched.model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        watched.update()
    watched.end()
    assert watched.samples() == [4] * 6
    assert Counter(watched.phases(1))["backward"] == 2


def test_gradients_of_gradients(watched: Watched) -> None:
    """`torch.autograd.grad` is backward work, after which the loss goes on."""
    for x, y in watched.loader:
        x.requires_grad_()
        loss = watched.criterion(watched.model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.square().sum()).backward()
        watched.update()
    watched.end()
    expected = [*PLAIN[:4], "backward", "loss", *PLAIN[4:]]
    assert watched.phases(1) == expected


def test_transforms_that_are_modules(watched: Watched) -> None:
    """What a data set calls while it loads is no forward pass, with parameters or without."""

    class Blurred(torch.utils.data.Dataset[Any]):
        transform = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout())

        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> Any:
            x, y = watched.data[index]
            return self.transform(x).detach(), y

    loader = WatchedLoader(torch.utils.data.DataLoader(Blurred(), batch_size=4), watched.recorder)
    for x, y in loader:
        watched.learn(x, y)
        watched.update()
    watched.end()
    assert watched.phases(0)[-8:] == PLAIN
    assert watched.phases(1) == PLAIN
    assert watched.hooks.modules == [watched.model]


def test_updates_that_nobody_can_see(watched: Watched) -> None:
    """An optimizer written by hand: after many batches each one counts as a step, and the run says so."""
    x, y = torch.randn(4, 3), torch.randn(4, 1)
    for batch in WatchedLoader([x] * 300, watched.recorder):
        watched.learn(batch, y)
        with torch.no_grad():
            for parameter in watched.model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
    watched.end()
    assert "no optimizer of torch.optim was called" in watched.recorder.not_measured["optimizer"]
    assert len(watched.wholes()) == 1 + 300 - 256
    assert watched.phases(3) == PLAIN[:6]
