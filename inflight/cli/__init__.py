"""The command `inflight`."""

from inflight.cli.app import app, main

__all__ = ["app", "main"]
