"""How the page looks, light and dark, as Streamlit's own options. The accent is the colour of predictions."""

from __future__ import annotations

from .colors import MARK_FILL, MEASURED, NEUTRAL, PREDICTED

_BOTH = {
    "baseFontSize": "15",
    "metricValueFontSize": "1.45rem",
    "metricValueFontWeight": "600",
    "baseRadius": "8px",
    "paddingTop": "0.6rem",
    "paddingBottom": "1rem",
    "primaryColor": PREDICTED,
}
_LIGHT = {"backgroundColor": "#FFFFFF", "secondaryBackgroundColor": "#F4F6F8", "textColor": "#1C2127"}
_DARK = {"backgroundColor": "#13161B", "secondaryBackgroundColor": "#1D2229", "textColor": "#E6E9ED"}
SERVER = {
    "browser.gatherUsageStats": "false",
    "client.showErrorDetails": "none",
    "client.showErrorLinks": "false",
    "logger.level": "warning",
    "client.toolbarMode": "viewer",
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": "false",
    "logger.hideWelcomeMessage": "true",
}
"""A program for users, not for whoever writes it: no watching of sources, no deploy button, no questions, no
advertisement (hiding the welcome message also hides the one that Streamlit lays over the page)."""
STYLE = """<style>
[data-testid="stSidebarUserContent"] { padding-top: 0; }
[data-testid="stMainBlockContainer"] { padding: 1.1rem 2.2rem 1rem; }
[data-testid="stHeader"] { background: transparent; }
[data-testid="stHeader"], [data-testid="stHeader"] * { pointer-events: none !important; }
[data-testid="stHeader"] button, [data-testid="stHeader"] button * { pointer-events: auto !important; }
[data-testid="stSidebar"] [data-testid="stVerticalBlock"] { gap: 0.45rem; }
[data-testid="stMainBlockContainer"] [data-testid="stVerticalBlock"] { gap: 0.6rem; }
[data-testid="stSidebar"] hr { margin: 0.3rem 0; }
</style>"""
"""Less air than Streamlit has, and a header that lets clicks through: an answer must be on the screen without
scrolling."""

_SQUARES = (
    f'<rect x="4" y="4" width="38" height="38" rx="8" fill="{PREDICTED}"/>'
    f'<rect x="22" y="22" width="38" height="38" rx="8" fill="{MEASURED}" stroke="{MARK_FILL}" stroke-width="3"/>'
)
ICON = f'<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64" viewBox="0 0 64 64">{_SQUARES}</svg>'
"""The twins: a square of the colour of predictions under one of the colour of measurements."""
_FONT = "'Source Sans 3', 'Segoe UI', system-ui, sans-serif"
WORDMARK = (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="280" height="64" viewBox="0 0 280 64">{_SQUARES}'
    f'<text x="76" y="45" textLength="196" lengthAdjust="spacingAndGlyphs" font-family="{_FONT}" font-size="38" '
    f'font-weight="600" fill="{NEUTRAL}">BatchTwin</text></svg>'
)


def options() -> dict[str, str]:
    """Streamlit's options by name."""
    return (
        SERVER
        | {f"theme.{name}": value for name, value in _BOTH.items()}
        | {f"theme.light.{name}": value for name, value in _LIGHT.items()}
        | {f"theme.dark.{name}": value for name, value in _DARK.items()}
    )
