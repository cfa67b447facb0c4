"""One module a page of the dashboard. The shell finds them by ``shell.PAGES``, and each has:

* ``TITLE``: its name in the list of pages, and ``ICON``: a Material icon (``:material/…:``) beside it;
* ``page(context: Context) -> None``: draw it with Streamlit, below the scenario bar, which is drawn already.

``context.opened`` is the sweep to show; where there is none it raises ``NoSweepError``, and the shell says what to do,
so a page just uses it. A page that can do without looks at ``context.results``. ``BatchTwinError`` and ``TraceError``
become one sentence on the screen. Records of a cell come from ``load.predicted_run`` and ``load.measured_runs``,
widgets keep their state in the address through ``link.follow`` and ``link.remember``, and figures are shown by
``show.show``, which gives each a download of its data and its picture. Arranging and drawing stand in modules of their
own (data → figure → page), which know no Streamlit.
"""
