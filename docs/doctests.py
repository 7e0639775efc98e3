"""Examples in docstrings as blocks of code: an extension of griffe, which reads the Python of the reference."""

import re

import griffe


class Doctests(griffe.Extension):
    """Fence the lines of a docstring from `>>>` to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of an object once it is known."""
        if obj.docstring is not None:
            text = re.sub(r"^>>>.*?(?=\n\n|\Z)", r"```pycon\n\g<0>\n```", obj.docstring.value, flags=re.M | re.S)
            obj.docstring.value = text
