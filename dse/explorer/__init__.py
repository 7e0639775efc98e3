"""The explorer: a Streamlit page over the same functions as the command line; no formula lives here."""
