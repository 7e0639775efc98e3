"""The script that `dse app` gives to Streamlit, what `app.py` is to `streamlit run`.

Streamlit runs it from the top on every interaction: it only calls, so that `dse.explorer.app` is imported once.
"""

from dse.explorer.app import main

main()
