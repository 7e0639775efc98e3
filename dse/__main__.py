"""`dse`, and `python -m dse`: the command, from its first moment on ended by Ctrl-C in one line."""

import os

from dse.core import interrupt


def main() -> None:
    """Run the command; what it imports takes a while, in which Ctrl-C is heeded as well."""
    interrupt.install()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it looks for some in every installed package
    from dse.cli.main import main

    main()


if __name__ == "__main__":
    main()
