"""The Streamlit script, alone in its folder: Streamlit would run what is in a folder ``pages`` beside it."""
