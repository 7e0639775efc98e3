"""The papers' studies on small language models of our own, run with numpy: weights, forward pass, caches, perplexity.

They stand beside the package in a checkout, not in the wheel; `dse measure --perplexity`, `lm:` sources and `dse study`
reach them through `dse.core.checkout`.
"""
