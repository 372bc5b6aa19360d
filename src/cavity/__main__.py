"""Makes ``python -m cavity`` the same as the `cavity` command."""

from cavity.cli import main

if __name__ == "__main__":
    main()
