value = undefined_name  # noqa: F821
