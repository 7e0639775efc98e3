"""The script that `dse app` gives to Streamlit: `app.py`, from inside the installed package."""

from dse.explorer.main import main

main()
