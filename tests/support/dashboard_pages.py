"""One page of the dashboard in Streamlit's own test runner."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from batchtwin.dashboard.launch import APP, RESULTS_VARIABLE


def open_page(name: str, results: Path, patch: pytest.MonkeyPatch, **address: str) -> AppTest:
    """Run page ``name`` over ``results`` as a link with these parameters opens it."""
    patch.setenv(RESULTS_VARIABLE, str(results))
    test = AppTest.from_file(str(APP), default_timeout=60)
    test._page_hash = calc_hash(name)  # what a browser sends after it has loaded /name
    for key, value in address.items():
        test.query_params[key] = value
    test.run()
    assert not test.exception
    return test


def text_of(test: AppTest) -> str:
    """Everything that is said on it."""
    return "\n".join(str(element.value) for element in (*test.markdown, *test.caption, *test.info))
