"""The module under test, loaded from the folder that an admin copies."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

HOOKS = Path(__file__).parents[2] / "hooks"


@pytest.fixture(scope="session")
def hook() -> ModuleType:
    """`juice_hook.py` as a module."""
    if "juice_hook" not in sys.modules:
        spec = importlib.util.spec_from_file_location("juice_hook", HOOKS / "juice_hook.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["juice_hook"] = module
        spec.loader.exec_module(module)
    return sys.modules["juice_hook"]
