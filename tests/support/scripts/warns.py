import logging
import warnings

warnings.warn("careful", stacklevel=1)
logging.warning("logged %s", __name__)
