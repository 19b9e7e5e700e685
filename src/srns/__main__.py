"""`python -m srns` is `srns`."""

from srns.cli import main

main()
