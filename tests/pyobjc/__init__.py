"""Apple's calls in PyObjC's spelling."""
