"""Results and their figures as files: images, pages, tables."""
