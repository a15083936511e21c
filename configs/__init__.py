"""Configuration files that ship with ftrun; default.yaml documents every key."""
