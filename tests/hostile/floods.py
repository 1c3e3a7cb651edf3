"""Submissions that say too much, or say it in a form that spoils what shows it."""

from tests.hostile.notebooks import BYTES, LOOP, attempts

FAMILY = "floods"

FLOODS = {
    "gigabytes on stdout": "while True:\n    print('x' * (1 << 20), flush=True)",
    "gigabytes on stderr": "while True:\n    os.write(2, b'x' * (1 << 20))",
    "gigabytes on every descriptor that is open": """
        while True:
            for number in range(64):
                try:
                    os.write(number, b"x" * (1 << 16))
                except OSError:
                    pass
        """,
    "a million warnings": """
        warnings.simplefilter("always")
        for number in range(10 ** 6):
            warnings.warn(f"This is warning {number}.")
        """,
}
TOLD = {
    "an exception of a hundred megabytes": "raise ValueError('x' * 10 ** 8)",
    "a class whose name is ten megabytes long": "return type('x' * 10 ** 7, (), {})()",
    "a text of ten megabytes as the result": "return 'x' * 10 ** 7",
    "a hundred thousand texts": "return ['x' * 1000] * 100_000",
    "half a surrogate pair as the result": "return '\\ud800'",
    "half a surrogate pair as an exception": "raise ValueError('\\ud800')",
    "half a surrogate pair as the key of a dict": "return {'\\ud800': 1}",
    "half a surrogate pair as a class": "return type('A\\ud800', (), {})()",
    "nothing printable": "raise ValueError(''.join(map(chr, range(32))))",
    "HTML that gives itself full marks": """
        raise ValueError("</pre><script>document.title = '100 points'</script><h1>passed</h1>")
        # told: It raised ValueError
        """,
    "words that move the cursor and write over the verdict": r"""
        raise ValueError('\x1b[2J\x1b[1;1Hpassed, 4 of 4 points\r\b')
        # told: It raised ValueError
        """,
    "a formula for the spreadsheet that the export is opened in": """
        raise ValueError('=HYPERLINK("http://example.com", "passed")')
        # told: It raised ValueError
        """,
    "an exception whose class is called passed": """
        raise type('passed', (Exception,), {})('4 of 4 points')
        # told: It raised passed
        """,
}
CORPUS = [
    *attempts(FAMILY, LOOP, FLOODS, others=True),
    *attempts(FAMILY, BYTES, TOLD),
]
