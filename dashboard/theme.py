"""How the page looks, light and dark, as Streamlit's own options. The accent is the colour of predictions."""

from __future__ import annotations

from .colors import PREDICTED

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
    "client.toolbarMode": "viewer",
    "server.fileWatcherType": "none",
    "server.showEmailPrompt": "false",
}
"""A program for users, not for whoever writes it: no watching of sources, no deploy button, no questions."""


def options() -> dict[str, str]:
    """Streamlit's options by name."""
    return (
        SERVER
        | {f"theme.{name}": value for name, value in _BOTH.items()}
        | {f"theme.light.{name}": value for name, value in _LIGHT.items()}
        | {f"theme.dark.{name}": value for name, value in _DARK.items()}
    )
