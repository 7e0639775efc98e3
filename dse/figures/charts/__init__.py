"""The figures, one file each: every file is imported, and declares what it draws with `@figure(...)`."""
