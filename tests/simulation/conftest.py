"""Makes `planted` importable for the tests of this folder: with import mode importlib, pytest does not."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
