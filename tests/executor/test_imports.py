from __future__ import annotations

import subprocess
import sys

from batchtwin import executor


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, batchtwin.executor; print(sorted({'torch', 'transformers', 'numba'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_fetched() -> None:
    for name in executor.__all__:
        assert getattr(executor, name).__doc__ or name == "PRESETS"
