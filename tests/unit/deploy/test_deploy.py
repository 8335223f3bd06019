"""What `headrace deploy` writes: read back as YAML, checked by schemas, by systemd, and by the rules of headrace's own stop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
import yaml

from headrace.base.errors import SettingsError
from headrace.base.plan import Plan
from headrace.cli import main
from headrace.cli import run as run_command
from headrace.cli import serve as serve_command
from headrace.deploy.image import make_containerfile
from headrace.deploy.manifests import make_manifests
from headrace.deploy.need import Need, find_need
from headrace.deploy.target import Target, name_of
from headrace.deploy.unit import make_environment, make_unit

PLAN = Plan.from_table({"run": {"grace_seconds": 90.5}, "stages": {"fetch": {"workers": 8}}})
NEED = Need(cores=1.5, memory_bytes=512 * 2**20, says="run first: measured")
KINDS = ("worker", "service")


def target(kind: str = "worker", **others: Any) -> Target:
    """Return something to deploy."""
    given = {"pipeline": "app/jobs.py:pipeline", "name": "photos", "plan": PLAN, "has_plan": True, **others}
    return Target(is_service=kind == "service", **given)


def manifests(what: Target) -> dict[str, Any]:
    """Return {kind: document}."""
    documents = list(yaml.safe_load_all(make_manifests(what)))
    return {document["kind"]: document for document in documents}


def container(what: Target) -> dict[str, Any]:
    """Return the only container."""
    (found,) = manifests(what)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def exec_start(what: Target) -> list[str]:
    """Return what systemd starts."""
    (line,) = [line for line in make_unit(what).splitlines() if line.startswith("ExecStart=")]
    return line.removeprefix("ExecStart=").split()


@pytest.mark.parametrize("kind", KINDS)
def test_the_documents_that_go_together(kind: str) -> None:
    """Each has the same name, and selects what the Deployment labels."""
    found = manifests(target(kind))
    assert set(found) == {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "ScaledObject"}
    assert {document["metadata"]["name"] for document in found.values()} == {"photos"}
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert found["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == "photos"
    assert "replicas" not in found["Deployment"]["spec"]  # or each `kubectl apply` would undo what KEDA set


def check_schema(document: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Raise ValidationError unless a document has the schema of its kind."""
    jsonschema.validate(document, {"$ref": f"#/$defs/{document['kind']}", **schemas})


@pytest.mark.parametrize("kind", KINDS)
def test_kubernetes_accepts_them(kind: str) -> None:
    """By the schemas of Kubernetes 1.30 (those of PyPI's kubernetes-validate, without descriptions), unknown keys refused."""
    schemas = json.loads((Path(__file__).parent / "kubernetes_1_30.json").read_text())
    found = manifests(target(kind, need=NEED))
    del found["ScaledObject"]
    for document in found.values():
        check_schema(document, schemas)
    found["Deployment"]["spec"]["template"]["spec"]["terminationGraceSeconds"] = 1  # there is no such key
    with pytest.raises(jsonschema.ValidationError):
        check_schema(found["Deployment"], schemas)


#: What KEDA's own definition of a ScaledObject says of the keys that are used here (keda.sh/v1alpha1).
KEDA = {
    "ScaledObject": {
        "required": ["spec"],
        "properties": {
            "apiVersion": {"const": "keda.sh/v1alpha1"},
            "spec": {
                "required": ["scaleTargetRef", "triggers"],
                "additionalProperties": False,
                "properties": {
                    "scaleTargetRef": {"required": ["name"], "properties": {"name": {"type": "string"}}},
                    **{key: {"type": "integer"} for key in ("minReplicaCount", "maxReplicaCount", "pollingInterval")},
                    "advanced": {
                        "additionalProperties": False,
                        "properties": {
                            "horizontalPodAutoscalerConfig": {"properties": {"behavior": {"type": "object"}}}
                        },
                    },
                    "triggers": {
                        "items": {
                            "required": ["type", "metadata"],
                            "properties": {"metadata": {"additionalProperties": {"type": "string"}}},
                        }
                    },
                },
            },
        },
    }
}


@pytest.mark.parametrize("kind", KINDS)
def test_keda_accepts_the_scaled_object(kind: str) -> None:
    """Keys that it has, numbers where it has numbers, and text in a trigger's metadata."""
    check_schema(manifests(target(kind))["ScaledObject"], {"$defs": KEDA})


@pytest.mark.parametrize("kind", KINDS)
def test_ports_probes_volumes_and_mounts_exist(kind: str) -> None:
    """Nothing names a port or a volume that is not there, which a schema does not see."""
    found = manifests(target(kind))
    one = container(target(kind))
    ports = {port["name"] for port in one["ports"]}
    probes = [one[name]["httpGet"]["port"] for name in one if name.endswith("Probe")]
    assert len(probes) >= 2
    assert {*probes, *(port["targetPort"] for port in found["Service"]["spec"]["ports"])} <= ports
    volumes = [volume["name"] for volume in found["Deployment"]["spec"]["template"]["spec"]["volumes"]]
    assert sorted(mount["name"] for mount in one["volumeMounts"]) == sorted(volumes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_is_one_that_headrace_reads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of container and unit are parsed by the command's own parser."""
    from headrace.cli import make_parser

    command = {"worker": run_command, "service": serve_command}[kind]
    monkeypatch.setenv("HEADRACE_QUEUE", "redis://:secret@cache/0\n")
    for words in (container(target(kind))["args"], exec_start(target(kind))[1:]):
        args = make_parser(words).parse_args(words)
        assert args.run is command.run
        assert kind == "service" or args.source == "redis://:secret@cache/0"
        assert args.supervise == 1
        assert args.pipeline.endswith("/jobs.py:pipeline")
        assert args.plan.endswith("/plan.toml")
        assert args.metrics.endswith("9000")


def test_a_service_listens_to_others_only_with_a_token() -> None:
    """In a pod with the Secret's token; under systemd for this machine alone."""
    words = container(target("service"))["args"]
    assert words[words.index("--token-file") + 1] == "/run/secrets/headrace/token"
    unit = exec_start(target("service"))
    assert unit[unit.index("--host") + 1] == "127.0.0.1"
    assert unit[unit.index("--metrics") + 1] == "9000"


@pytest.mark.parametrize(("kind", "seconds"), [("worker", 106), ("service", 111)])
def test_a_stop_has_the_time_that_the_plan_gives(kind: str, seconds: int) -> None:
    """90.5 s of grace, rounded up, 10 s until a supervisor kills, 5 s more, and a service first sends its clients elsewhere."""
    pod = manifests(target(kind))["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == seconds
    assert f"TimeoutStopSec={seconds}" in make_unit(target(kind))


def test_resources_are_of_all_workers_of_a_pod() -> None:
    """Three workers of 1.5 cores and 512 MiB, and 128 MiB beside them; without a profile nothing is claimed."""
    resources = container(target(need=NEED, supervise=3))["resources"]
    assert resources == {"requests": {"cpu": "4500m", "memory": "1664Mi"}, "limits": {"memory": "1664Mi"}}
    assert f"MemoryMax={1664 * 2**20}" in make_unit(target(need=NEED, supervise=3))
    assert "resources" not in container(target())
    assert "MemoryMax" not in make_unit(target())


def test_the_scaler_asks_for_the_wanted_workers_once() -> None:
    """One trigger, by pods of so many workers; values are text, as KEDA wants them."""
    spec = manifests(target(supervise=4, least=2, most=30, job="mine"))["ScaledObject"]["spec"]
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"]["threshold"] == "4"
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert 'job="mine"' in trigger["metadata"]["query"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 30)


def test_another_plan_starts_the_pods_again() -> None:
    """The Plan is in a ConfigMap, whose change alone restarts nothing: its id stands in the pod's annotations."""
    found = manifests(target())
    assert Plan.from_table(_toml(found["ConfigMap"]["data"]["plan.toml"])) == PLAN
    annotations = found["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["headrace/plan-id"] == PLAN.plan_id
    assert "ConfigMap" not in manifests(target(has_plan=False))


def _toml(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


def test_the_queue_comes_by_environment() -> None:
    """Container and unit name the variable, and no address."""
    one = container(target())
    assert one["args"][one["args"].index("--source") + 1] == "env:HEADRACE_QUEUE"
    assert not [
        word for word in one["args"] if "$" in word
    ]  # the address would be in the arguments, which all users see
    assert one["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "photos", "key": "queue"}
    assert "env:HEADRACE_QUEUE" in exec_start(target())
    assert not [word for word in exec_start(target()) if "$" in word]
    assert "HEADRACE_QUEUE=\n" in make_environment(target())
    assert "HEADRACE_QUEUE" not in make_environment(target("service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_systemd_accepts_the_unit(kind: str, tmp_path: Path) -> None:
    """By its own checker, with a program that is there."""
    path = tmp_path / "photos.service"
    path.write_text(make_unit(target(kind, program=shutil.which("true"), need=NEED, allow=("10.0.0.0/8",))))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True, text=True, env={**os.environ, "SYSTEMD_PAGER": ""},
    )  # fmt: skip
    said = [line for line in (done.stdout + done.stderr).splitlines() if "photos.service" in line]
    assert not said


def test_the_image_copies_what_the_pipeline_needs() -> None:
    """The module's file and what was named, read-only, as no root; a module of a package is not a file."""
    text = make_containerfile(target(include=("scenes.onnx",)))
    (line,) = [line for line in text.splitlines() if line.startswith("COPY")]
    assert json.loads(line.partition("[")[1] + line.partition("[")[2]) == ["app/jobs.py", "scenes.onnx", "/app/"]
    assert "USER 10001:10001" in text
    of_package = make_containerfile(target(pipeline="shop.jobs:pipeline"))
    assert "COPY" not in of_package
    assert "shop.jobs is a module" in of_package
    assert "shop.jobs:pipeline" in container(target(pipeline="shop.jobs:pipeline"))["args"]


def test_the_image_keeps_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model lies below the pipeline's file as it does here, and a folder can be entered there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app" / "words").mkdir(parents=True)
    text = make_containerfile(
        target(include=("app/models/a.onnx", "app/b.onnx", "app/words", "other/c.onnx", "./app/d"))
    )
    lines = [line for line in text.splitlines() if line.startswith("COPY")]
    copied = [(json.loads(line[line.index("[") :]), "--chmod" in line) for line in lines]
    assert copied == [
        (["app/words", "/app/words/"], False),
        (["app/jobs.py", "app/b.onnx", "other/c.onnx", "./app/d", "/app/"], True),
        (["app/models/a.onnx", "/app/models/"], True),
    ]
    with pytest.raises(SettingsError, match="one name"):
        target(include=("other/a.onnx", "another/a.onnx"))


@pytest.mark.parametrize(
    ("pipeline", "name"),
    [("jobs.py:pipeline", "jobs"), ("a/Photos_Night.py:p", "photos-night"), ("shop.jobs:p", "jobs"), ("__main__.py:p", "main"),
     ("123.py:p", "pipeline-123"), (f"{'x' * 80}.py:p", "x" * 50), ("写.py:p", "pipeline")],
)  # fmt: skip
def test_names(pipeline: str, name: str) -> None:
    """The file's name as a DNS label."""
    assert name_of(pipeline) == name


@pytest.mark.parametrize(
    "wrong",
    [{"name": "Photos"}, {"name": "a b"}, {"name": "-a"}, {"name": "a" * 51}, {"image": "a b"}, {"image": "-v"},
     {"program": "bin/headrace"}, {"allow": ("10.0.0.0/33",)}, {"least": 0, "most": 0},
     {"supervise": 0}, {"least": 5, "most": 4}, {"most": 10_001}, {"pipeline": "jobs.py"}, {"pipeline": "-x:p"},
     {"pipeline": "a b.py:p"},
     {"pipeline": "jobs.py:a-b"}, {"pipeline": "jobs.py:p\nUser=root"}, {"program": "/bin/true\nUser=root"},
     {"prometheus": "http://u:p@x"}, {"include": ("a b",)}, {"include": ("--from=x",)}, {"allow": ("x y",)}, {"job": 'a"}'}],
)  # fmt: skip
def test_what_cannot_be_deployed(wrong: dict[str, Any]) -> None:
    """Nothing that would be another line of a unit or another word of a command comes through."""
    with pytest.raises(SettingsError):
        target(**wrong)


def test_a_plan_with_a_secret_is_refused() -> None:
    """It would stand in a ConfigMap, where more people read."""
    plan = Plan.from_table({"stages": {"fetch": {"options": {"password": "hunter2hunter2"}}}})
    with pytest.raises(SettingsError, match="secret"):
        target(plan=plan)


def profile(**others: Any) -> Any:
    """Return a profile of 10 s with 12 s of CPU and 300 MB at most."""
    given = {
        "run": "first",
        "cpu": SimpleNamespace(total_seconds=12.0, elapsed_seconds=10.0, num_cores=4.0),
        "series": (SimpleNamespace(scope="processes", name="rss_bytes", maximum=300e6),),
        "latency": SimpleNamespace(percentile=lambda percent: None, maximum=7.0),
        **others,
    }
    return SimpleNamespace(**given)


def test_the_need_is_read_from_a_profile() -> None:
    """1.2 cores at four fifths are 1.5; one and a half times 300 MB, in steps of 64 MiB; never more cores than there were."""
    need = find_need(profile())
    assert (need.cores, need.memory_bytes, need.longest_seconds) == (1.5, 448 * 2**20, 7.0)
    few = find_need(profile(cpu=SimpleNamespace(total_seconds=12.0, elapsed_seconds=10.0, num_cores=1.2)))
    assert few.cores == 1.2


@pytest.mark.parametrize("missing", [{"cpu": None}, {"series": ()}])
def test_a_run_that_does_not_tell(missing: dict[str, Any]) -> None:
    """Nothing is made up."""
    with pytest.raises(SettingsError, match="headrace profile"):
        find_need(profile(**missing))


def test_the_command_writes_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says which, replaces none without --force, and warns of what is not known or not there."""
    monkeypatch.chdir(tmp_path)
    command = ["deploy", "jobs.py:pipeline", "--set", "fetch.workers=8", "-o", "out", "--replicas", "2,4"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    names = {Path(line).name for line in out.split()}
    assert names == {"jobs.service", "jobs.env", "plan.toml", "kubernetes.yaml", "Containerfile"}
    assert all((tmp_path / "out" / name).stat().st_size for name in names)
    assert "without --run" in err
    # not the name of its base, on which the next build would begin
    assert 'image: "jobs"' in (tmp_path / "out" / "kubernetes.yaml").read_text()
    assert "ARG BASE=headrace\n" in (tmp_path / "out" / "Containerfile").read_text()
    assert "jobs.py is not here" in err
    assert Plan.load("out/plan.toml").stages["fetch"].workers == 8
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "headrace.deploy/1"


@pytest.mark.parametrize(
    "wrong",
    [["--replicas", "3"], ["--replicas", "a,b"], ["--replicas", "-1,2"], ["--replicas", "5,2"],
     ["--replicas", "0,2"], ["--name", ""],
     ["--run", "nowhere"], ["--plan", "nowhere.toml"]],
)  # fmt: skip
def test_misuse(wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["deploy", "jobs.py:pipeline", "-o", "out", *wrong])
    except SystemExit as error:
        status = int(str(error.code))
    assert status == 2
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and the file stays."""
    monkeypatch.chdir(tmp_path)
    Path("out").write_text("mine")
    assert main(["deploy", "jobs.py:pipeline", "-o", "out", "--force"]) == 2
    assert Path("out").read_text() == "mine"
