"""`python -m potstill` is the command line."""

from potstill.app.cli import main

main()
