"""One test for every decision of the specification, and for every published fact that is easy to
get wrong. The names say the decision; the numbers come from the written equations or from the
oracle, never from the code under test.
"""
