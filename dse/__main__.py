"""`dse`, and `python -m dse`: the command, from its first moment on ended by Ctrl-C in one line."""

import gc
import os

from dse.core import interrupt


def main() -> None:
    """Run the command; what it imports takes a while, in which Ctrl-C is heeded as well."""
    interrupt.install()
    gc.set_threshold(100_000)  # what starts a command leaves no cycles behind, and looking for them takes 6 % of it
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it looks for some in every installed package
    from dse.cli.main import main

    main()


if __name__ == "__main__":
    main()
