"""A service that follows its Plan's file: another model answers, and nobody is failed by that."""

import json
import time
import urllib.request
from pathlib import Path

import pytest

from headrace.samples.catalogue import PHOTOGRAPHS
from tests.integration.serve.service import Service
from tests.integration.serve.test_serve_command import PIPELINE

pytestmark = pytest.mark.smoke

PHOTOGRAPH = PHOTOGRAPHS[0].path.read_bytes()


def ask(service: Service) -> tuple[str, object]:
    """Return the Plan that answered, and the answer."""
    with urllib.request.urlopen(urllib.request.Request(f"{service.url}/v1/jobs", PHOTOGRAPH), timeout=60) as response:
        return str(response.headers["X-Headrace-Plan"]), json.load(response)["result"]


def test_a_served_model_is_exchanged_while_it_answers(tmp_path: Path) -> None:
    """Once the file names another variant, answers name another Plan; the same photograph is the same scene."""
    (tmp_path / "jobs.py").write_text(PIPELINE)
    plan = tmp_path / "plan.toml"
    plan.write_text('[model]\nengine = "onnx"\n')
    service = Service(tmp_path, "jobs.py:pipeline", "--plan", "plan.toml", "--follow")
    try:
        service.wait_until_ready()
        before = ask(service)
        plan.write_text('[model]\nengine = "onnx"\noptions = { graph_optimization = "basic" }\n')
        give_up_at = time.monotonic() + 60
        while (after := ask(service))[0] == before[0]:
            assert time.monotonic() < give_up_at, service.said
        assert after[1] == before[1]
    finally:
        status, _, said = service.end()
    assert status == 0, said
    assert "switched to scenes.onnx" in said
