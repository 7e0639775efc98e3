"""The server that `dse app` starts, as `streamlit run app.py` does."""

from streamlit.starlette import App

from dse.explorer import serving

app = App(serving.SCRIPT, middleware=serving.MIDDLEWARE, lifespan=serving.open_browser)
