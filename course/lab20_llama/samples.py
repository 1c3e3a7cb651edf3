"""The arguments of the pictures."""

import torch

from tests.samples import of, randn
from visuals import llama as visuals

QUARTERS = torch.tensor([1.0, 0.5, -0.25]) * torch.pi / 2  # a turn in 4, in 8 and in 16 positions
MANY = 100.0 ** -torch.linspace(0, 1, 64)
STRIPES = torch.tensor([[0.0, -1.0, 3.0], [1.0, 0.0, -1.0], [2.0, 1.0, 0.0]])
BROKEN = STRIPES + torch.tensor([0.0, 0.0, 0.5])  # of the last key
BYTES = torch.tensor([0, 60, 0, 188, *range(1, 33)], dtype=torch.uint8)  # the first four: 1 and -1
NUMBERS = randn(32)
CHAT = [1, 7, 4, 8, 9, 2, 4]
TEXTS = ["<|im_start|>", "user", "\n", "<|im", "_end|>", "<|im_end|>", "\n"]
CONTROL = {"<|im_start|>": 1, "<|im_end|>": 2}
MODELS = {"fable": (43_000_000, 24_576), "a model that people know": (538_700_000, 46_080)}

EXAMPLES = (
    of(visuals.show_hands, MANY[:8]),
    of(visuals.hands, QUARTERS, 3),
    of(visuals.hands, MANY, 8192),
    of(visuals.show_by_distance, STRIPES),
    of(visuals.show_by_distance, BROKEN),
    of(visuals.show_by_distance, torch.zeros(1, 1)),
    of(visuals.show_turns, {"before": MANY, "after": MANY / 8}, 8192),
    of(visuals.show_turns, {"plain": QUARTERS[:1]}, 4),
    of(visuals.show_groups, 9, 3),
    of(visuals.show_groups, 32, 8),
    of(visuals.show_groups, 4, 4),
    of(visuals.show_block, BYTES[2:], "Q8_0", NUMBERS),
    of(visuals.show_block, BYTES[2:20], "Q4_0", NUMBERS),
    of(visuals.show_block, BYTES[:20], "Q4_1", NUMBERS * 1e-3),
    of(visuals.show_chat, CHAT, TEXTS, CONTROL),
    of(visuals.show_memory, MODELS),
    of(visuals.show_memory, {"one": (1, 1)}),
)
