"""The explorer: `streamlit run app.py`, or `dse app` from anywhere."""

from dse.explorer.main import main

main()
