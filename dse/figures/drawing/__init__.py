"""How a chart is described, laid out and drawn."""
