"""`python -m streaming.cli`: how the supervisor starts its children, whatever the PATH."""

from streaming.cli.app import main

main()
