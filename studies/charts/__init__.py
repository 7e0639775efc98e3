"""Figures of a language model's study; `dse.figures` declares them in a checkout."""
