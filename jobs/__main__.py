"""`python -m jobs` is `steelyard`."""

from jobs.cli import main

if __name__ == "__main__":
    main()
