"""Names of Flower's that must be known before Flower is imported, or without it."""

from __future__ import annotations

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""For a Flower that neither calls home nor installs anything; it reads them when it is imported."""
