"""The front page by its ideas: its texts and fields, its request, the sweep's thread, and the front that it gives."""
