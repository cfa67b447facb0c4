"""SHOWS: data → figure → page. One page over a folder of sweeps, and the same as a file to send.

``results`` reads, ``data`` arranges, ``figures`` and ``heatmaps`` draw; ``app`` is the Streamlit script, ``report`` the
HTML file. Only ``app`` and what it shows (``page``, ``start_form``, ``state``) know Streamlit.
"""
