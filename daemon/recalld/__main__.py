"""`python -m recalld`."""

from recalld.cli import main

if __name__ == "__main__":
    main()
