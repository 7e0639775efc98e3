"""The explorer: `streamlit run app.py`, or `dse app` from anywhere."""

from dse.explorer.app import main

main()
