"""The command `inflight`."""

from streaming.cli.app import app, main

__all__ = ["app", "main"]
