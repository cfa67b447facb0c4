"""The Streamlit script. Run through ``launch``."""

import streamlit as st

from batchtwin.dashboard.shell import main
from batchtwin.dashboard.theme import ICON

st.set_page_config(page_title="BatchTwin", page_icon=ICON, layout="wide")
main()
