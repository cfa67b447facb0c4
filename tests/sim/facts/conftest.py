"""The modules of this folder import each other by name, here as under ``python tests/sim/facts/starts.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
