"""What a design point takes: memory, time, energy and money."""
