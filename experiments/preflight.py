"""What a measurement needs, as far as it can be seen before PyTorch is loaded, which takes seconds."""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from .errors import ExperimentError

DRIVERS = ("libcuda.so.1", "libamdhip64.so", "nvcuda.dll")
"""What a device that PyTorch calls cuda has on its machine: NVIDIA's driver or AMD's."""
HUB_TIMEOUT_S = 4.0


def check_ready(model: str, device: str) -> None:
    """Raise ``ExperimentError`` if ``model`` is a folder that is not there or a name that neither the local cache nor
    the hub has, or ``device`` cannot be on this machine.
    """
    if device == "cuda" and not any(map(_can_load, DRIVERS)):
        raise ExperimentError("This machine has no driver of a GPU: choose --device cpu, or install the driver.")
    if find_spec("torch") is None:
        raise ExperimentError("Measuring needs PyTorch: pip install 'batchtwin[executor]'.")
    if Path(model).expanduser().is_dir():
        return
    if model.startswith((".", "/", "~")):
        raise ExperimentError(f"There is no folder {model}: give a checkpoint's folder, a hub id or a preset.")
    if model.count("/") == 1 and not (_hub_cache() / f"models--{model.replace('/', '--')}").is_dir():
        _ask_hub(model)


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _hub_cache() -> Path:
    """Where Hugging Face keeps what it downloaded, by its own variables."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()


def _ask_hub(model: str) -> None:
    """One question, a few seconds at most: the hub's own client would try again and again."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise ExperimentError(f"Model {model!r} is not in the local cache, and HF_HUB_OFFLINE forbids to fetch it.")
    token = os.environ.get("HF_TOKEN", "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co').rstrip('/')}/api/models/{model}"
    try:
        with urlopen(Request(url, headers=headers), timeout=HUB_TIMEOUT_S):
            return
    except HTTPError as error:
        if error.code not in (401, 403, 404):
            return  # let the client find out
        raise ExperimentError(
            f"The hub has no model {model!r} for you (HTTP {error.code}): check its name, or your token (HF_TOKEN)."
        ) from error
    except (OSError, ValueError) as error:
        raise ExperimentError(
            f"Model {model!r} is not in the local cache, and the hub cannot be reached: give a checkpoint's folder."
        ) from error
