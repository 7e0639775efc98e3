"""Reference KV-cache quantizers and the formats they store.

This package knows nothing of the design-space models: they reach it through what it exports here.
"""

from kernels_ref.formats import FORMATS, PARTS, NumberFormat, StorageConstants, storage

__all__ = ["FORMATS", "PARTS", "NumberFormat", "StorageConstants", "storage"]
