"""One page of the dashboard in Streamlit's own test runner."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from batchtwin.dashboard.launch import RESULTS_VARIABLE

_SCRIPT = """
import os
from importlib import import_module
from pathlib import Path

import streamlit as st

from batchtwin.dashboard import shell

st.set_page_config(layout="wide")
page = import_module("batchtwin.dashboard.pages.{name}")
shell._run(Path(os.environ["{variable}"]), page.page)
"""


def open_page(name: str, results: Path, patch: pytest.MonkeyPatch, **address: str) -> AppTest:
    """Run page ``name`` over ``results`` as a link with these parameters opens it."""
    patch.setenv(RESULTS_VARIABLE, str(results))
    test = AppTest.from_string(_SCRIPT.format(name=name, variable=RESULTS_VARIABLE), default_timeout=30)
    for key, value in address.items():
        test.query_params[key] = value
    test.run()
    assert not test.exception
    return test


def text_of(test: AppTest) -> str:
    """Everything that is said on it."""
    return "\n".join(str(element.value) for element in (*test.markdown, *test.caption, *test.info))
