"""The tokenizer that a GGUF file holds, as the tokenizers library has it.

Only byte-level BPE is read, which all families here use.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from solutions.gguf.file import GGUF

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {  # tokenizer.ggml.pre: one after the other, these cut a text into words
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],  # each digit alone
    "llama-bpe": [LLAMA3],
    "qwen2": [LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")],
}
CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


def tokenizer_of(file: GGUF) -> Tokenizer:
    """Return the tokenizer of a GGUF. Raises ValueError if it isn't one of WORDS."""
    entries = file.entries
    kind, words = (entries.get(f"tokenizer.ggml.{entry}") for entry in ("model", "pre"))
    if kind != "gpt2" or words not in WORDS:
        raise ValueError(
            f"{file.path} has the tokenizer {kind!r}/{words!r}, which isn't read here; byte-level "
            f"BPE with the words of {', '.join(WORDS)} is."
        )
    tokens, kinds = entries["tokenizer.ggml.tokens"], entries["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in entries["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in WORDS[words]]
    characters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, characters])
    tokenizer.decoder = decoders.ByteLevel()
    pairs = list(zip(tokens, kinds, strict=True))
    tokenizer.add_special_tokens([token for token, kind in pairs if kind == CONTROL])
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, kind in pairs if kind == USER_DEFINED]
    )
    return tokenizer
