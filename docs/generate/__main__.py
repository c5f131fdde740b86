"""Writes every generated file whose text has changed, and prints its name. With --check: exit code 1 if one is stale."""

import sys

from docs.generate.files import ROOT, stale

if __name__ == "__main__":
    files = stale()
    for path, text in files.items():
        sys.stdout.write(f"{path}\n")
        if "--check" not in sys.argv[1:]:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, encoding="utf-8")
    sys.exit(bool(files) and "--check" in sys.argv[1:])
