import broken_module  # noqa: F401
