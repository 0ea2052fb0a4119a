"""Contests: entries searched alike where differences are large against the noise, and repeated on fresh seeds.

``contest`` has the parts, ``entries`` the stages, ``schedule`` the runs, ``records`` what of a run is kept. There are
two. The study judges claims: ``groups`` says who competes, ``verdicts`` how a claim is judged, ``claims`` which claims
there are, ``tables`` how all of it is written down. The price asks what a pass buys: ``price`` says who competes,
``price_tables`` what each keeps. The rules are in ``docs/study.md`` and ``docs/price.md``.
"""
