"""The tabs of the page Why: where time goes, errors of quantization on a dump, every number, and what-ifs."""
