"""The study: every method on a stage where differences are large against the noise, with a verdict on every claim.

``entries`` says who competes, ``records`` what of a run is kept, ``verdicts`` how a claim is judged, ``claims`` which
claims there are, ``tables`` how all of it is written down. The rules are in ``docs/study.md``.
"""
