"""The stages of the pipeline, one a file: windows, prepare, encode, commit. Each is a plain function or object
without threads of its own; `pipeline.py` runs them side by side."""
