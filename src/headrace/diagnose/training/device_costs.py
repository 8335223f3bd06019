"""Costs of a training whose trace shows the device: what keeps it from computing, and what the host does meanwhile.

Where there is a device, what the host takes costs nothing while the device is at work, and the host's waits are often the
device's work. So these rules look at the device alone; see `train.trace.device` for what is attributed to what.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.base.units import format_duration
from headrace.diagnose.training.cost import WORTH_WORK, Cost, View, fact
from headrace.diagnose.training.rank_costs import waiting_for_ranks
from headrace.runs.formats.diagnosis import EvidenceLine, Finding, Remedy, VerdictClass
from headrace.runs.formats.training_ranks import RanksJudged
from headrace.runs.formats.training_trace import DeviceTime, TracedSync
from headrace.runs.training_phases import Phase

#: Phases in which the host launches the model's work.
_LAUNCHING = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER)
_OWN = (Phase.BEFORE_UPDATE, Phase.AFTER, Phase.OUTSIDE)
#: Work that was launched and does not run, as a share of the step, from which that is said.
_MUCH_QUEUED = 0.1


def device_costs(view: View, device: DeviceTime, judged: RanksJudged | None) -> list[Cost | None]:
    """Return what keeps the device from computing.

    Args:
        view: Of a rank whose trace has a device.
        device: That one.
        judged: What ranks show side by side; None with one.
    """
    ranks = None if judged is None else waiting_for_ranks(judged, view.batches)
    return [
        _loading(device),
        _transfer(device),
        _launching(view, device),
        _waiting_for_device(view, device),
        _own_code(device),
        _idle(device, VerdictClass.CHECKPOINT, (Phase.CHECKPOINT,), "while a checkpoint is written", _SAVE_LESS),
        ranks,
        _communication(device, 0.0 if ranks is None else ranks.share, is_alone=judged is None),
    ]


_SAVE_LESS = (
    Remedy(says="save less often, or write in a thread: torch.distributed.checkpoint.async_save"),
)  # fmt: skip
_LOAD_FASTER = (
    Remedy(says="load in more processes: DataLoader(..., num_workers=N, persistent_workers=True, pin_memory=True)"),
    Remedy(says="find out what loading costs in the workers, which is in no trace", command="headrace train SCRIPT.py"),
)
_COPY_AHEAD = (
    Remedy(
        says='copy while the device computes: pin_memory=True and batch.to("cuda", non_blocking=True), one batch ahead'
    ),
    Remedy(says="copy fewer bytes: uint8 images, and normalise on the device"),
)
_LAUNCH_LESS = (
    Remedy(says='launch fewer, larger kernels: torch.compile(model, mode="reduce-overhead"), which uses CUDA graphs'),
    Remedy(says="a larger batch: as many launches, each with more work"),
    Remedy(says="one kernel for all parameters: an optimizer with fused=True or foreach=True"),
)
_WAIT_LESS = (
    Remedy(says="read values on the host rarely: .item(), .cpu(), print and logging every 100 steps"),
    Remedy(says="keep sums on the device (total += loss.detach()), and decide there: torch.where instead of if"),
)
_WORK_LESS = (
    Remedy(says="move the loop's own code (logging, metrics, schedulers) out of every step, or into a thread"),
)


def _idle(
    device: DeviceTime, verdict: VerdictClass, phases: tuple[Phase, ...], while_what: str, remedies: tuple[Remedy, ...]
) -> Cost:
    seconds = sum(device.idle_seconds.get(phase, 0.0) for phase in phases)
    return Cost(
        verdict=verdict,
        stage=max(phases, key=lambda phase: device.idle_seconds.get(phase, 0.0)),
        cause="device idle",
        says=f"the device is idle for {format_duration(seconds)} of a step of {format_duration(device.step_seconds)} "
        f"({_share(device, seconds):.0%}) {while_what}",
        rule=f"the device is idle for at least {WORTH_WORK:.0%} of the step while the host is in this phase and has not "
        "launched "
        "the next work",
        share=_share(device, seconds),
        evidence=_facts(device),
        remedies=remedies,
    )


def _share(device: DeviceTime, seconds: float) -> float:
    return seconds / device.step_seconds if device.step_seconds else 0.0


def _loading(device: DeviceTime) -> Cost:
    phases = (Phase.WAIT, Phase.EPOCH_START)
    return _idle(device, VerdictClass.LOADING, phases, "while the host waits for data", _LOAD_FASTER)


def _transfer(device: DeviceTime) -> Cost:
    copying, idle = device.exposed_transfer_seconds, device.idle_seconds.get(Phase.PREPARE, 0.0)
    return Cost(
        verdict=VerdictClass.TRANSFER,
        stage=Phase.PREPARE,
        cause="device idle",
        says=f"the device waits for data for {format_duration(copying + idle)} of a step of "
        f"{format_duration(device.step_seconds)}: "
        f"{format_duration(copying)} of copies between host and device that nothing else runs beside, {format_duration(idle)} "
        "while the host prepares a batch that has come",
        rule=f"copies between host and device, and preparing batches, keep the device from computing for at least "
        f"{WORTH_WORK:.0%} "
        "of the step",
        share=_share(device, copying + idle),
        evidence=_facts(device),
        remedies=_COPY_AHEAD,
    )


def _launching(view: View, device: DeviceTime) -> Cost:
    cost = _idle(
        device, VerdictClass.LAUNCH, _LAUNCHING, "because the host is late with launching the next kernel", _LAUNCH_LESS
    )
    dearest = "" if view.profile.trace is None else ", ".join(one.name for one in view.profile.trace.operators[:3])
    return replace(
        cost,
        evidence=(
            fact(
                "launches",
                f"{device.kernels:,.0f} kernels in a step, of {format_duration(device.kernel_seconds)} on average; the host "
                f"launches one every {format_duration(device.launch_seconds)}, and {device.short_share:.0%} are shorter",
                device.short_share,
                0.5,
            ),
            *((fact("operators", f"on the host most time goes to {dearest}", None),) if dearest else ()),
            *cost.evidence,
        ),
    )


def _waiting_for_device(view: View, device: DeviceTime) -> Cost:
    seconds = device.idle_after_sync_seconds
    syncs = () if view.profile.trace is None else view.profile.trace.syncs
    most = max(syncs, key=lambda one: one.idle_seconds, default=None)
    where = "" if most is None else f", most behind {describe_sync(most)}"
    return Cost(
        verdict=VerdictClass.SYNC,
        stage=None if most is None else most.phase,
        cause="waits for the device",
        says=f"the host waits for the device, which is then idle for {format_duration(seconds)} of a step of "
        f"{format_duration(device.step_seconds)} ({_share(device, seconds):.0%}){where}",
        rule=f"behind calls that wait for the device it is idle for at least {WORTH_WORK:.0%} of the step, until the host has "
        "launched the next work",
        share=_share(device, seconds),
        evidence=(
            *(fact("call", f"{describe_sync(one)}: {one.count:.3g} in a step", one.count) for one in syncs[:3]),
            *_facts(device),
        ),
        remedies=_WAIT_LESS,
    )


def describe_sync(sync: TracedSync) -> str:
    """Return a call that waits, with what is around it: `cudaStreamSynchronize in aten::item, train.py: step`."""
    around = [one for one in (sync.operator, sync.place) if one]
    return f"{sync.call} in {', '.join(around)}" if around else f"{sync.call} in {sync.phase}"


def _own_code(device: DeviceTime) -> Cost:
    return _idle(device, VerdictClass.SYNC, _OWN, "while the host runs the loop's own code", _WORK_LESS)


def _communication(device: DeviceTime, waiting_share: float, *, is_alone: bool) -> Cost:
    seconds = device.exposed_communication_seconds
    alone = "; waiting for other ranks is part of it, and one trace does not tell which" if is_alone else ""
    return Cost(
        verdict=VerdictClass.COMMUNICATION,
        stage=Phase.EXCHANGE,
        cause="device idle",
        says=f"kernels of NCCL run for {format_duration(seconds)} of a step of {format_duration(device.step_seconds)} "
        f"({_share(device, seconds):.0%}) while nothing is computed{alone}",
        rule=f"communication that no computing hides takes at least {WORTH_WORK:.0%} of the step, beyond waiting for ranks",
        share=max(_share(device, seconds) - waiting_share, 0.0),
        evidence=(
            fact(
                "hidden",
                f"communication in all: {format_duration(device.communication_seconds)}; computing hides "
                f"{format_duration(device.communication_seconds - seconds)} of it",
                device.communication_seconds,
            ),
            *_facts(device),
        ),
        remedies=(
            Remedy(says="exchange less often: accumulate gradients under model.no_sync()"),
            Remedy(says="exchange fewer bytes: a bfloat16 hook (ddp_comm_hooks.default_hooks.bf16_compress_hook)"),
            Remedy(says="begin earlier: smaller buckets (bucket_cap_mb), gradient_as_bucket_view=True"),
        ),
    )


def _facts(device: DeviceTime) -> tuple[EvidenceLine, ...]:
    computing = _share(device, device.compute_seconds)
    return (fact("computing", f"the device computes {computing:.0%} of the step", computing),)


def healthy_device(view: View, device: DeviceTime) -> Finding:
    """Return the finding where the device is kept at work."""
    computing = _share(device, device.compute_seconds)
    return Finding(
        verdict=VerdictClass.HEALTHY,
        stage=None,
        cause="",
        says=f"the device computes {computing:.0%} of the step, and nothing that keeps it from that costs "
        f"{WORTH_WORK:.0%}; good "
        "enough, stop here",
        rule=f"nothing besides computing on the device costs {WORTH_WORK:.0%} of the step",
        confidence="medium" if view.num_plain >= 5 else "low",
        gain=None,
        evidence=_facts(device),
        remedies=(
            Remedy(
                says="if it must be faster: bfloat16 (torch.autocast), torch.compile, a cheaper model or another device"
            ),
        ),
    )


def note_of_queue(view: View) -> str | None:
    """Return a warning where much of the step is work that was launched and does not run."""
    device = view.device
    if device is None or _share(device, device.queued_seconds) < _MUCH_QUEUED:
        return None
    return (
        f"for {_share(device, device.queued_seconds):.0%} of the step nothing runs on the device though the next work was "
        "launched: "
        "one stream waits for another, or the trace does not have all kernels"
    )
