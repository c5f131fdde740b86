"""Writes the pages and pictures of docs/ that are made from the code: `python -m docs.generate`, or `make references`."""
