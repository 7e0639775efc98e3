"""Questions answered by name: crossover, inverse design, sensitivity, best quantizer; each a table and a text."""
