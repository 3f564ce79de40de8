"""`python -m shardwright` is the same as `shardwright`."""

from shardwright.cli.app import main

if __name__ == "__main__":
    main()
