"""Lets the tests of this folder import `tuning_fakes` beside it: test folders are not packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location("tuning_fakes", Path(__file__).with_name("tuning_fakes.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["tuning_fakes"] = _module
_spec.loader.exec_module(_module)
