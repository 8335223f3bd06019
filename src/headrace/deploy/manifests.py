"""Kubernetes: a Deployment with probes and limits, a Service, a PodDisruptionBudget, and KEDA's ScaledObject.

Nothing secret is in them: the queue's address is a key of a Secret that the user makes, and so is the token of a service.
"""

from __future__ import annotations

from typing import Any

from headrace.deploy.command import PLAN, QUEUE, TOKEN_FILE, arguments
from headrace.deploy.image import FOLDER
from headrace.deploy.need import BESIDE_BYTES
from headrace.deploy.target import HTTP_PORT, METRICS_PORT, Target
from headrace.monitor.rules.files import to_yaml
from headrace.monitor.rules.scaling import wanted_workers_query

_USER = 10001
_MIB = 2**20
_HEAD = "# Made by `headrace deploy`; make it again rather than edit it.\n"


def make_manifests(target: Target) -> str:
    """Return all documents as YAML."""
    documents = [
        *([_plan(target)] if target.has_plan else []),
        _deployment(target),
        _service(target),
        _budget(target),
        _scaled(target),
    ]
    return _HEAD + secrets_note(target) + "".join(f"---\n{to_yaml(document)}" for document in documents)


def secrets_note(target: Target) -> str:
    """Return how the Secret is made that the manifests name."""
    key = "token" if target.is_service else "queue"
    return f"# Before it: kubectl create secret generic {target.name} --from-file={key}=FILE\n"


def _meta(target: Target) -> dict[str, Any]:
    return {"name": target.name, "labels": _labels(target)}


def _labels(target: Target) -> dict[str, str]:
    return {"app.kubernetes.io/name": target.name, "app.kubernetes.io/managed-by": "headrace-deploy"}


def _selector(target: Target) -> dict[str, str]:
    return {"app.kubernetes.io/name": target.name}


def _plan(target: Target) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _meta(target), "data": {PLAN: target.plan.as_toml()}}


def _deployment(target: Target) -> dict[str, Any]:
    # A service keeps what it has until the next one answers; of workers a quarter may be missing, whose jobs come again.
    surge = {"maxUnavailable": 0, "maxSurge": 1} if target.is_service else {"maxUnavailable": "25%", "maxSurge": "25%"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(target),
        "spec": {
            "selector": {"matchLabels": _selector(target)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": surge},
            "template": {
                "metadata": {
                    "labels": _labels(target),
                    "annotations": {
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": str(METRICS_PORT),
                        # Pods begin again when the Plan is another one.
                        "headrace/plan-id": target.plan.plan_id,
                    },
                },
                "spec": _pod(target),
            },
        },
    }


def _pod(target: Target) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [{"name": "work", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}})
    if target.has_plan:
        volumes.append({"name": "plan", "configMap": {"name": target.name}})
    if target.is_service:
        token = {"secretName": target.name, "items": [{"key": "token", "path": "token"}]}
        volumes.append({"name": "token", "secret": token})
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": target.stop_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(target)],
        "volumes": volumes,
    }


def _container(target: Target) -> dict[str, Any]:
    token_file = TOKEN_FILE if target.is_service else ""
    words = arguments(target, folder=FOLDER, plan=f"/plan/{PLAN}", token_file=token_file)
    ports = [{"name": "metrics", "containerPort": METRICS_PORT}]
    ports += [{"name": "http", "containerPort": HTTP_PORT}] if target.is_service else []
    mounts: list[dict[str, Any]] = [
        {"name": "work", "mountPath": "/work"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    mounts += [{"name": "plan", "mountPath": "/plan", "readOnly": True}] if target.has_plan else []
    mounts += [{"name": "token", "mountPath": "/run/secrets/headrace", "readOnly": True}] if target.is_service else []
    queue = {"name": QUEUE, "valueFrom": {"secretKeyRef": {"name": target.name, "key": "queue"}}}
    return {
        "name": "headrace",
        "image": target.image,
        "args": words,
        "workingDir": "/work",
        **({} if target.is_service else {"env": [queue]}),
        "ports": ports,
        **_probes(target),
        **_resources(target),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _probes(target: Target) -> dict[str, Any]:
    """Return the probes; a worker's supervisor watches its workers itself, so what is asked of it is whether it answers."""
    if target.is_service:
        ready = {"httpGet": {"path": "/readyz", "port": "http"}}
        return {
            "startupProbe": {**ready, "periodSeconds": 1, "failureThreshold": 300},
            "readinessProbe": {**ready, "periodSeconds": 5},
            "livenessProbe": {"httpGet": {"path": "/livez", "port": "http"}, "periodSeconds": 5, "failureThreshold": 4},
        }
    answers = {"httpGet": {"path": "/metrics", "port": "metrics"}}
    return {
        "startupProbe": {**answers, "periodSeconds": 2, "failureThreshold": 150},
        "livenessProbe": {**answers, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
    }


def _resources(target: Target) -> dict[str, Any]:
    """Return what the pod asks for. CPU has no limit: a throttled worker is slow in bursts, and nobody else gains by it."""
    need = target.need
    if need is None:
        return {}
    memory = f"{(target.supervise * need.memory_bytes + BESIDE_BYTES) // _MIB}Mi"
    cores = f"{round(1000 * target.supervise * need.cores)}m"
    return {"resources": {"requests": {"cpu": cores, "memory": memory}, "limits": {"memory": memory}}}


def _service(target: Target) -> dict[str, Any]:
    port = {"name": "http", "port": HTTP_PORT, "targetPort": "http"}
    metrics = {"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics"}
    # Workers are called by nobody but Prometheus, which asks each of them.
    spec = {"ports": [port, metrics]} if target.is_service else {"clusterIP": "None", "ports": [metrics]}
    return {
        "apiVersion": "v1", "kind": "Service", "metadata": _meta(target), "spec": {"selector": _selector(target), **spec},
    }  # fmt: skip


def _budget(target: Target) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _meta(target),
        "spec": {"maxUnavailable": 1 if target.is_service else "25%", "selector": {"matchLabels": _selector(target)}},
    }


def _scaled(target: Target) -> dict[str, Any]:
    """Return KEDA's part: as many pods as the wanted workers need, and no other trigger: jobs in flight are in that number."""
    trigger = {
        "type": "prometheus",
        "metadata": {
            "serverAddress": target.prometheus,
            "query": wanted_workers_query(target.job),
            "threshold": str(target.supervise),
        },
    }
    # Going down too soon costs starts and warm-ups; so the most counts that was wanted for longer than a start takes. The five
    # minutes that are Kubernetes' default cost 7 % more under a square wave, and shorten no wait: benchmarks.scale_autoscaling.
    down = {
        "stabilizationWindowSeconds": 120,
        "policies": [{"type": "Percent", "value": 25, "periodSeconds": 60}],
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _meta(target),
        "spec": {
            "scaleTargetRef": {"name": target.name},
            "minReplicaCount": target.least,
            "maxReplicaCount": target.most,
            "pollingInterval": 15,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleDown": down}}},
            "triggers": [trigger],
        },
    }
