"""The receiver in the guide to callbacks does what the guide says."""

from __future__ import annotations

import re
import threading
from http.server import HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import DeliveryRejected
from headrace.base.network_rules import NetworkPlan
from headrace.base.plan import Plan
from headrace.base.records import Job
from headrace.delivery.callback import Callback

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "callbacks.md"


@pytest.mark.smoke
def test_the_guides_receiver(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes signed callbacks, prints a result once however often it comes, and answers 401 to anybody else."""
    code = next(
        block for block in re.findall("```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "Verifier(" in block
    )
    names: dict[str, Any] = {}
    exec(code, names)
    names["Receiver"].log_message = lambda *_: None
    secret = re.findall('Verifier\\("(whsec_[^"]+)"\\)', code)[0]
    server = HTTPServer(("127.0.0.1", 0), names["Receiver"])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    job = Job("job-1", b"", attributes={"callback": f"http://127.0.0.1:{server.server_port}/"})
    plan = Plan(network=NetworkPlan(allow=["127.0.0.1"]))
    monkeypatch.setenv("RIGHT", secret)
    monkeypatch.setenv("WRONG", "whsec_" + "A" * 32)
    try:
        for place in ("RIGHT", "RIGHT", "WRONG"):
            delivery = Callback(secret_env=place)
            delivery.open(SimpleNamespace(options={}, plan=plan, count=lambda name, number: None, shared={}))
            if place == "RIGHT":
                assert delivery.deliver(job, {"label": "harbour"}) is True
            else:
                with pytest.raises(DeliveryRejected, match="answered 401"):
                    delivery.deliver(job, {"label": "forged"})
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert capsys.readouterr().out == '{"id":"job-1","task":"","result":{"label":"harbour"}}\n'
