"""The outer ring: one adapter for each thing that does I/O. Nothing else imports those libraries."""

import ctypes
from contextlib import suppress

# usearch brings a C++ library of its own inside, whose symbols onnxruntime would otherwise be bound to when it is loaded
# after it: it then ends the process (usearch 2.26.6, onnxruntime 1.31.1). With the system's loaded first both use that.
with suppress(OSError):
    ctypes.CDLL("libstdc++.so.6", mode=ctypes.RTLD_GLOBAL)
