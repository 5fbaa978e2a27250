"""`zstate bench`: zstate and its peers in one process, in alternating blocks, checked before timed.

``rows`` says what is measured, ``contenders`` who takes part, ``contest`` checks them, ``timing``
times them, ``report`` shows it. ``training`` compares whole training steps.
"""
