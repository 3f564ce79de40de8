"""`python -m shardwright_sandbox`."""

from shardwright_sandbox.cli import main

if __name__ == "__main__":
    main()
