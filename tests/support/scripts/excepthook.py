import sys
import traceback


def hook(kind, error, trace):
    print(
        "hook", kind.__name__, error, traceback.extract_tb(trace) == traceback.extract_tb(error.__traceback__)
    )
    print("".join(traceback.format_exception(kind, error, trace)))


sys.excepthook = hook
1 / 0  # noqa: B018
