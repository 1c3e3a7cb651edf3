"""Submissions that say too much, or say it in a form that spoils what shows it."""

from functools import partial

from tests.hostile.notebooks import BYTES, LOOP, attempt

FAMILY = "floods"
floods = partial(attempt, FAMILY, exercise=LOOP, others=True)
told = partial(attempt, FAMILY, exercise=BYTES)


CORPUS = [
    floods("gigabytes on stdout", body="while True:\n    print('x' * (1 << 20), flush=True)"),
    floods(
        "gigabytes on stderr",
        body="""
        import os, sys
        while True:
            os.write(2, b"x" * (1 << 20))
        """,
    ),
    floods(
        "gigabytes on every descriptor that is open",
        body="""
        import os
        while True:
            for number in range(64):
                try:
                    os.write(number, b"x" * (1 << 16))
                except OSError:
                    pass
        """,
    ),
    floods(
        "a million warnings",
        body="""
        import warnings
        warnings.simplefilter("always")
        for number in range(10 ** 6):
            warnings.warn(f"This is warning {number}.")
        """,
    ),
    told("an exception of a hundred megabytes", body="raise ValueError('x' * 10 ** 8)"),
    told(
        "a class whose name is ten megabytes long",
        body="return type('x' * 10 ** 7, (), {})()",
    ),
    told("a text of ten megabytes as the result", body="return 'x' * 10 ** 7"),
    told("a hundred thousand texts", body="return ['x' * 1000] * 100_000"),
    told("half a surrogate pair as the result", body="return '\\ud800'"),
    told("half a surrogate pair as an exception", body="raise ValueError('\\ud800')"),
    told("half a surrogate pair as the key of a dict", body="return {'\\ud800': 1}"),
    told("half a surrogate pair as a class", body="return type('A\\ud800', (), {})()"),
    told("nothing printable", body="raise ValueError(''.join(map(chr, range(32))))"),
    told(
        "HTML that gives itself full marks",
        body="""
        raise ValueError("</pre><script>document.title = '100 points'</script><h1>passed</h1>")
        """,
        says="It raised ValueError",
    ),
    told(
        "words that move the cursor and write over the verdict",
        body=r"raise ValueError('\x1b[2J\x1b[1;1Hpassed, 4 of 4 points\r\b')",
        says="It raised ValueError",
    ),
    told(
        "a formula for the spreadsheet that the export is opened in",
        body='raise ValueError(\'=HYPERLINK("http://example.com", "passed")\')',
        says="It raised ValueError",
    ),
    told(
        "an exception whose class is called passed",
        body="raise type('passed', (Exception,), {})('4 of 4 points')",
        says="It raised passed",
    ),
]
