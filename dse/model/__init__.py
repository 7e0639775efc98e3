"""Memory, time, energy and cost of a design point."""
