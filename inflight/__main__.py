"""`python -m inflight`: how the supervisor starts its children, whatever the PATH."""

from inflight.cli.app import main

main()
