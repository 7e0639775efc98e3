"""The explorer: `streamlit run app.py`, or `dse app` from anywhere."""

from streamlit.starlette import App

from dse.explorer import serving

app = App(serving.SCRIPT, middleware=serving.MIDDLEWARE, lifespan=serving.open_browser)
