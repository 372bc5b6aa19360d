"""Run the command as ``python -m cavity.cli``."""

from cavity.cli import main

if __name__ == "__main__":
    main()
