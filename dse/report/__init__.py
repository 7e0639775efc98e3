"""The report and the validation page."""
