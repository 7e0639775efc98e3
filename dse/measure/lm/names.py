"""Names in the tables of the language models, which writers and readers share."""

import re

#: ln of a window's own perplexity over FP16's
WINDOW = re.compile("log_ratio_[0-9]+")
#: series of Oaken's 4-bit outliers read as a sign and a 3-bit magnitude
SIGNED = "sign and 3 bit"
