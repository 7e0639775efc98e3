"""Run the explorer's script: Streamlit runs this file from the top on every interaction, so it only calls."""

from dse.explorer.app import main

main()
