"""Units, errors, files, and the checks of files that a user wrote: the layer below all others."""
