"""The script for Streamlit, in a folder of its own: a folder `pages` beside it would be pages of Streamlit's own."""
