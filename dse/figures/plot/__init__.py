"""Figures of the tables that commands write: `dse plot`."""
