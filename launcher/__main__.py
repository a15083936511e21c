"""`python -m ftrun.launcher` is the same as `ftrun`."""

from ftrun.launcher.cli import main

main()
