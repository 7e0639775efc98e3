"""Figures of a language model's study; `dse.figures` declares them in a checkout."""

import dse.figures  # noqa: F401 (first: it imports the modules here, in their order)
