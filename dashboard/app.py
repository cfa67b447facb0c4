"""The Streamlit script: where the results are, which sweep, and what to show of it. Run through ``launch``."""

import streamlit as st

from batchtwin.dashboard.page import main

st.set_page_config(page_title="BatchTwin", page_icon=":material/stacked_bar_chart:", layout="wide")
main()
