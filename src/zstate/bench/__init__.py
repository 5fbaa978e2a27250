"""The benchmark: zstate and its peers in one process, in alternating blocks, checked before timed.

``rows`` says what is measured, ``contenders`` who takes part, ``timing`` how, ``report`` shows it.
"""
