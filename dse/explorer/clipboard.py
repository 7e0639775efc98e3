"""A button that copies a picture to the clipboard."""

import base64

import streamlit as st

_HTML = '<button type="button">Copy picture</button><span role="status"></span>'
_CSS = """
button {
    font: inherit; color: var(--st-text-color); background: var(--st-background-color); cursor: pointer;
    border: 1px solid var(--st-border-color); border-radius: var(--st-button-radius); padding: 0.25rem 0.75rem;
    min-height: 2.5rem;
}
button:hover, button:focus-visible { color: var(--st-primary-color); border-color: var(--st-primary-color); }
span { margin-left: 0.75rem; }
"""
#: pages that came without encryption from another machine may not copy pictures
_JS = """
export default function ({ parentElement, data }) {
    const button = parentElement.querySelector("button"), said = parentElement.querySelector("span");
    said.textContent = "";
    button.onclick = async () => {
        try {
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            const picture = new Blob([bytes], { type: "image/png" });
            await navigator.clipboard.write([new ClipboardItem({ "image/png": picture })]);
            said.textContent = "Copied.";
        } catch {
            said.textContent = "This browser lets the page copy no pictures: take the PNG.";
        }
    };
}
"""
_button = st.components.v2.component("dse_copy_picture", html=_HTML, css=_CSS, js=_JS)


def copy_picture(png: bytes, key: str) -> None:
    """Draw the button; what it did stands beside it."""
    _button(data=base64.b64encode(png).decode(), key=key)
