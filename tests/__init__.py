"""The tests; a package, so that folders may have files of the same name and share their helpers."""
