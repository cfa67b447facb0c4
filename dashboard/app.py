"""The Streamlit script: where the results are, which sweep, and what to show of it. Run through ``launch``."""

import streamlit as st

from batchtwin.dashboard.page import main
from batchtwin.dashboard.theme import ICON

st.set_page_config(page_title="BatchTwin", page_icon=ICON, layout="wide")
main()
