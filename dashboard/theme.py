"""How the page looks, light and dark, as Streamlit's own options. The accent is the colour of predictions."""

from __future__ import annotations

from .colors import MARK_FILL, MEASURED, NEUTRAL, PREDICTED

_BOTH = {
    "baseFontSize": "15",
    "metricValueFontSize": "1.45rem",
    "metricValueFontWeight": "600",
    "baseRadius": "8px",
    "paddingTop": "1rem",
    "paddingBottom": "2rem",
    "primaryColor": PREDICTED,
}
_LIGHT = {"backgroundColor": "#FFFFFF", "secondaryBackgroundColor": "#F4F6F8", "textColor": "#1C2127"}
_DARK = {"backgroundColor": "#13161B", "secondaryBackgroundColor": "#1D2229", "textColor": "#E6E9ED"}
SERVER = {
    "browser.gatherUsageStats": "false",
    "client.showErrorDetails": "none",
    "logger.level": "warning",
    "client.toolbarMode": "viewer",
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": "false",
}
"""A program for users, not for whoever writes it: no watching of sources, no deploy button, no questions."""

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
