"""Lab 16 in another style: no regular expression, plain dicts, one merge at a time."""

import io
import unicodedata
from itertools import chain, pairwise

CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def kind_of_char(char):
    """L for letters, N for numerals, and S for white space, which str.isspace takes too wide."""
    if char.isspace() and not "\x1c" <= char <= "\x1f":
        return "S"
    category = unicodedata.category(char)[0]
    return category if category in "LN" else "?"


def run_length(text, start):
    """How many characters of one kind come in a row."""
    kind, end = kind_of_char(text[start]), start
    while end < len(text) and kind_of_char(text[end]) == kind:
        end += 1
    return end - start


def word_length(text, start):
    for contraction in CONTRACTIONS:
        if text.startswith(contraction, start):
            return len(contraction)
    with_space = text[start] == " " and text[start + 1 : start + 2].strip() != ""
    if with_space or kind_of_char(text[start]) != "S":
        return with_space + run_length(text, start + with_space)
    length = run_length(text, start)
    return length if start + length == len(text) or length == 1 else length - 1


def decode(ids, token_bytes):
    require_known(ids, token_bytes)
    ### BEGIN SOLUTION
    data = bytearray()
    for number in ids:
        data += token_bytes[number]
    return io.TextIOWrapper(io.BytesIO(data), "utf-8", errors="replace", newline="").read()
    ### END SOLUTION


def pre_tokenize(text):
    ### BEGIN SOLUTION
    words = []
    start = 0
    while start < len(text):
        end = start + word_length(text, start)
        words.append(text[start:end])
        start = end
    return words
    ### END SOLUTION


def merge(parts, pair):
    ### BEGIN SOLUTION
    stack, left, is_whole = [], pair[0], False
    for part in parts:
        if stack and not is_whole and stack[-1] == left and part == pair[1]:
            stack[-1] += part
            is_whole = True
        else:
            stack.append(part)
            is_whole = False
    return stack
    ### END SOLUTION


def count_pairs(splits, counts):
    ### BEGIN SOLUTION
    found = {}
    for word in splits:
        parts = splits[word]
        for i in range(1, len(parts)):
            pair = parts[i - 1], parts[i]
            found[pair] = found.get(pair, 0) + counts[word]
    return {pair: found[pair] for pair in sorted(found)}
    ### END SOLUTION


def train(words, merges, ids):
    ### BEGIN SOLUTION
    numbers, learned = {**ids}, []
    split = [(word, [word[i : i + 1] for i in range(len(word))]) for word in words]
    for _ in range(merges):
        pairs = count_pairs(dict(split), words)
        if not pairs:
            return learned
        order = sorted(pairs, key=lambda pair: (numbers[pair[0]], numbers[pair[1]]))
        best = max(order, key=lambda pair: pairs[pair])  # the first of the largest
        learned += [best]
        joined = b"".join(best)
        if joined not in numbers:
            numbers[joined] = next_id(numbers)
        split = [(word, merge(parts=parts, pair=best)) for word, parts in split]
    return learned
    ### END SOLUTION


def join_by_rank(word, ranks):
    ### BEGIN SOLUTION
    parts = [word[i : i + 1] for i in range(len(word))]
    while True:
        pairs = enumerate(pairwise(parts))
        known = [(ranks[pair], place) for place, pair in pairs if pair in ranks]
        if not known:
            return parts
        _, place = min(known)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    ### END SOLUTION


def encode(text, tokenizer, allowed_special=()):
    require_text(text)
    require_special(allowed_special, tokenizer)

    ### BEGIN SOLUTION
    def ordinary(piece):
        words = (word.encode() for word in pre_tokenize(piece))
        parts = chain.from_iterable(join_by_rank(word, tokenizer.ranks) for word in words)
        return [tokenizer.ids[part] for part in parts]

    found, start, place = [], 0, 0
    while place < len(text):
        here = [name for name in allowed_special if text.startswith(name, place)]
        if not here:
            place += 1
            continue
        name = max(here, key=len)
        found.extend(ordinary(text[start:place]))
        found.append(tokenizer.special[name])
        start = place = place + len(name)
    return found + ordinary(text[start:])
    ### END SOLUTION


def is_begun(some):
    """Whether later bytes, the lowest or the highest ones, make one character of these."""
    ends = [byte * n for byte in (b"\x80", b"\xbf") for n in (1, 2, 3)]
    whole = [(some + end).decode("utf-8", "replace") for end in ends]
    return any(len(text) == 1 and text != "\ufffd" for text in whole)


class StreamDecoder:
    def push(self, token):
        require_known([token], self.token_bytes)
        ### BEGIN SOLUTION
        data = self.held + self.token_bytes[token]
        begun = [n for n in (3, 2, 1) if n <= len(data) and is_begun(data[-n:])]
        certain = len(data) - max(begun, default=0)
        self.held = data[certain:]
        return data[:certain].decode("utf-8", "replace")
        ### END SOLUTION
