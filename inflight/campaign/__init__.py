"""Sends one message to many clients at a rate, and stops if too many fail (docs/guides/campaigns.md). Runs without Java."""
