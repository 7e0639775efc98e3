"""Charts as data, their layout, and their drawing by matplotlib and plotly."""
