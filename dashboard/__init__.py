"""SHOWS: data → figure → page. A few pages over a folder of sweeps, and one of them as a file to send.

``results`` reads, ``data`` and its like arrange, ``figures`` and its like draw; ``script`` is what Streamlit runs,
``shell`` what is around every page, ``pages`` the pages, ``report`` the HTML file. Streamlit is known to ``script``,
``shell``, ``pages`` and what they are made of (``link``, ``load``, ``show``, ``scenario_bar``, …) alone.
"""
