"""What everything else stands on: units, errors, files, and files that a user wrote."""
