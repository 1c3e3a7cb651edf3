"""Wrong solutions of lab 3, each with one sentence to whoever wrote it."""

from typing import Any

import torch
import torch.nn.functional as F

from autograder.exercise import Misconception
from autograder.misconceptions.kv_cache import Wrong
from solutions import batching as right
from solutions.kv_cache import causal_mask

PAD_LEFT = Wrong()
POSITIONS = Wrong()
MASK = Wrong()
GENERATE = Wrong()
UTILISATION = Wrong()
SELECT = Wrong(right.SlotCache, "select")
ATTEND = Wrong(right.SlotCache, "attend")
ADMIT = Wrong(right.ContinuousBatcher, "admit")
STEP = Wrong(right.ContinuousBatcher, "step")


# ------------------------------------------------------------------------------------- pad_left


def pad_right(prompts, pad_id=0):
    width = max(len(prompt) for prompt in prompts)
    input_ids = torch.tensor([[*p, *[pad_id] * (width - len(p))] for p in prompts])
    return input_ids, torch.arange(width) < torch.tensor([[len(p)] for p in prompts])


@PAD_LEFT.where(
    "The pads are on the right: then the next token comes at another column in every row. Put them "
    "on the left, so that all prompts end at the last column.",
)
def padded_on_the_right(prompts, pad_id=0):
    return pad_right(prompts, pad_id)


@PAD_LEFT.where(
    "The ids are padded on the left and the mask on the right: True belongs where the tokens are.",
)
def mask_on_the_right(prompts, pad_id=0):
    return right.pad_left(prompts, pad_id)[0], pad_right(prompts, pad_id)[1]


@PAD_LEFT.where(
    "True and False are exchanged in the mask: True is where a token is, False where a pad is.",
)
def true_where_a_pad_is(prompts, pad_id=0):
    input_ids, attention_mask = right.pad_left(prompts, pad_id)
    return input_ids, ~attention_mask


@PAD_LEFT.where(
    "The mask takes every id that equals pad_id for a pad, but a prompt may hold the same id: take "
    "it from the lengths of the prompts.",
)
def pads_found_by_their_id(prompts, pad_id=0):
    input_ids, _ = right.pad_left(prompts, pad_id)
    return input_ids, input_ids != pad_id


@PAD_LEFT.where(
    "Every id other than 0 counts as a token and 0 as a pad, whatever pad_id is: take the mask "
    "from the lengths of the prompts.",
)
def zeros_are_pads(prompts, pad_id=0):
    input_ids, _ = right.pad_left(prompts, pad_id)
    return input_ids, input_ids.bool()


@PAD_LEFT.where(
    "The pads are 0 whatever pad_id says.",
)
def pad_id_ignored(prompts, pad_id=0):
    return right.pad_left(prompts)


@PAD_LEFT.where(
    "The prompts are cut to the shortest: none may lose a token, so it is the longest that gives "
    "the width.",
)
def cut_to_the_shortest(prompts, pad_id=0):
    shortest = min(len(prompt) for prompt in prompts)
    return right.pad_left([prompt[-shortest:] for prompt in prompts], pad_id)


@PAD_LEFT.where(
    "The rectangle is as wide as the first prompt, where another one may be longer: take the "
    "longest of all.",
)
def as_wide_as_the_first(prompts, pad_id=0):
    width = len(prompts[0])
    input_ids = torch.full((len(prompts), width), pad_id)
    attention_mask = torch.zeros(input_ids.shape, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        input_ids[row, width - len(prompt) :] = torch.tensor(prompt)
        attention_mask[row, width - len(prompt) :] = True
    return input_ids, attention_mask


@PAD_LEFT.where(
    "The rectangle has one column too many: the longest prompt needs no pad.",
)
def one_column_too_many(prompts, pad_id=0):
    input_ids, attention_mask = right.pad_left(prompts, pad_id)
    return F.pad(input_ids, (1, 0), value=pad_id), F.pad(attention_mask, (1, 0))


@PAD_LEFT.where(
    "The mask is True everywhere: pads are no tokens, and attention must know which they are.",
)
def pads_count_as_tokens(prompts, pad_id=0):
    input_ids, attention_mask = right.pad_left(prompts, pad_id)
    return input_ids, torch.ones_like(attention_mask)


@PAD_LEFT.where(
    "The mask holds 1 and 0: asked for are True and False, which `&` and attention understand.",
)
def mask_of_integers(prompts, pad_id=0):
    input_ids, attention_mask = right.pad_left(prompts, pad_id)
    return input_ids, attention_mask.long()


@PAD_LEFT.where(
    "The ids are floats: token ids are whole numbers, so give the rectangle the dtype torch.int64.",
)
def ids_as_floats(prompts, pad_id=0):
    input_ids, attention_mask = right.pad_left(prompts, pad_id)
    return input_ids.float(), attention_mask


@PAD_LEFT.where(
    "The tokens stand in reverse order: padding the reversed prompts is a good idea, if everything "
    "is turned back afterwards.",
)
def tokens_reversed(prompts, pad_id=0):
    return right.pad_left([prompt[::-1] for prompt in prompts], pad_id)


@PAD_LEFT.where(
    "The prompts come out sorted by their length: row i belongs to prompt i, or the outputs go to "
    "the wrong people.",
)
def sorted_by_length(prompts, pad_id=0):
    return right.pad_left(sorted(prompts, key=len), pad_id)


@PAD_LEFT.where(
    "The caller's prompts have got pads as well: build new lists, and leave those that were handed "
    "in alone.",
)
def prompts_padded_in_place(prompts, pad_id=0):
    padded = right.pad_left(prompts, pad_id)
    for prompt, row in zip(prompts, padded[0].tolist(), strict=True):
        prompt[:] = row
    return padded


@PAD_LEFT.where(
    "The mask comes first: return the ids, then the mask.",
)
def mask_before_ids(prompts, pad_id=0):
    return right.pad_left(prompts, pad_id)[::-1]


@PAD_LEFT.where(
    "Only the ids come back: return the attention mask with them, for nothing else tells a pad "
    "from a token.",
)
def ids_alone(prompts, pad_id=0):
    return right.pad_left(prompts, pad_id)[0]


# -------------------------------------------------------------------------- padded_position_ids


@POSITIONS.where(
    "These are the columns of the rectangle, pads counted: the first token of every text stands at "
    "position 0, however many pads are before it.",
)
def columns_counted(attention_mask):
    return torch.arange(attention_mask.shape[1]).expand(attention_mask.shape)


@POSITIONS.where(
    "Every token's position is one too high: cumsum counts the token itself, and positions start "
    "at 0.",
)
def counted_from_one(attention_mask):
    return attention_mask.cumsum(dim=1)


@POSITIONS.where(
    "The pads have position -1, which the model refuses: give them one within the context, 0 for "
    "instance.",
)
def pads_at_minus_one(attention_mask):
    return attention_mask.cumsum(dim=1) - 1


@POSITIONS.where(
    "The pads have negative positions, which the model refuses: give them one within the context, "
    "0 for instance.",
)
def pads_before_zero(attention_mask):
    pads = (~attention_mask).sum(dim=1, keepdim=True)
    return torch.arange(attention_mask.shape[1]) - pads


@POSITIONS.where(
    "The first token of a text gets position 1: only pads may be moved, and a token at 0 stays "
    "there.",
)
def first_token_moved(attention_mask):
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=1)


@POSITIONS.where(
    "Every row gets the positions of row 0: the rows have different numbers of pads.",
)
def first_row_for_all(attention_mask):
    return right.padded_position_ids(attention_mask[:1]).expand(attention_mask.shape)


@POSITIONS.where(
    "The sum runs down the batch: it must run along the row, cumsum(dim=1).",
)
def summed_over_the_batch(attention_mask):
    return (attention_mask.cumsum(dim=0) - 1).clamp(min=0)


@POSITIONS.where(
    "These are only 0 and 1, the mask as numbers: add up along the row, so that the n-th token "
    "gets n - 1.",
)
def mask_as_numbers(attention_mask):
    return attention_mask.long()


@POSITIONS.where(
    "The positions run backwards: the first token of the text, next to the pads, stands at 0.",
)
def counted_from_the_end(attention_mask):
    seq = attention_mask.shape[1]
    return torch.arange(seq - 1, -1, -1).expand(attention_mask.shape) * attention_mask


@POSITIONS.where(
    "This counts pads, not tokens: the running sum goes over the mask itself, where tokens are 1.",
)
def pads_counted(attention_mask):
    return ((~attention_mask).cumsum(dim=1) - 1).clamp(min=0)


@POSITIONS.where(
    "These are floats: a position picks a row of a table, so it must be a whole number.",
)
def positions_as_floats(attention_mask):
    return (attention_mask.float().cumsum(dim=1) - 1).clamp(min=0)


# ---------------------------------------------------------------------------------- padded_mask


def keys_that_are_tokens(attention_mask):
    return attention_mask[:, None, None, :]


def columns_of(attention_mask):
    return torch.arange(attention_mask.shape[1]).expand(attention_mask.shape)


@MASK.where(
    "The pads are attended to: the causal mask alone lets them through, for they stand before the "
    "tokens. Join it to the attention mask of the keys with `&`.",
)
def pads_attended(attention_mask, q_len):
    columns = columns_of(attention_mask)
    return causal_mask(columns[:, -q_len:], columns)


@MASK.where(
    "The pads are hidden, but the future is not: a query sees keys at its own position or before "
    "it.",
)
def future_seen(attention_mask, q_len):
    return keys_that_are_tokens(attention_mask).repeat(1, 1, q_len, 1)


@MASK.where(
    "A pad sees no key at all, and a softmax over nothing is 0/0: with the columns as positions, "
    "the keys before a pad are pads as well. Take padded_position_ids, or let a pad see itself.",
)
def nothing_for_a_pad(attention_mask, q_len):
    columns = columns_of(attention_mask)
    return causal_mask(columns[:, -q_len:], columns) & keys_that_are_tokens(attention_mask)


@MASK.where(
    "The queries are the first q_len columns: those that ask are the last ones, [:, -q_len:].",
)
def first_columns_ask(attention_mask, q_len):
    positions = right.padded_position_ids(attention_mask)
    visible = causal_mask(positions[:, :q_len], positions)
    return visible & keys_that_are_tokens(attention_mask)


@MASK.where(
    "The queries' positions start at 0 again: they are the last columns of a text that goes back "
    "further. Take the last q_len of padded_position_ids.",
)
def queries_from_zero(attention_mask, q_len):
    positions = right.padded_position_ids(attention_mask)
    asking = torch.arange(q_len).expand(len(positions), q_len)
    return causal_mask(asking, positions) & keys_that_are_tokens(attention_mask)


@MASK.where(
    "There is a row for every column, where only the last q_len ask.",
)
def every_column_asks(attention_mask, q_len):
    positions = right.padded_position_ids(attention_mask)
    return causal_mask(positions, positions) & keys_that_are_tokens(attention_mask)


@MASK.where(
    "Tokens and pads are exchanged: hide the keys whose attention mask is False.",
)
def tokens_hidden(attention_mask, q_len):
    positions = right.padded_position_ids(attention_mask)
    visible = causal_mask(positions[:, -q_len:], positions)
    return visible & ~keys_that_are_tokens(attention_mask)


@MASK.where(
    "True and False are exchanged: here True means that the query may see the key.",
)
def true_means_hidden(attention_mask, q_len):
    return ~right.padded_mask(attention_mask, q_len)


@MASK.where(
    "The attention mask is laid over the queries: it is the keys that are pads, so it belongs on "
    "the last dimension, attention_mask[:, None, None, :].",
)
def pads_hidden_as_queries(attention_mask, q_len):
    positions = right.padded_position_ids(attention_mask)
    visible = causal_mask(positions[:, -q_len:], positions)
    return visible & attention_mask[:, None, -q_len:, None]


@MASK.where(
    "Every row of the batch gets the mask of row 0: the rows have different numbers of pads.",
)
def mask_of_the_first_row(attention_mask, q_len):
    mask = right.padded_mask(attention_mask[:1], q_len)
    return mask.expand(len(attention_mask), -1, -1, -1)


@MASK.where(
    "No token sees itself: a key at the query's own position is visible too.",
)
def own_position_hidden(attention_mask, q_len):
    positions = right.padded_position_ids(attention_mask)
    visible = causal_mask(positions[:, -q_len:] - 1, positions)
    return visible & keys_that_are_tokens(attention_mask)


@MASK.where(
    "The mask is right but for its shape: a 1 for the heads belongs at dimension 1, "
    "[batch, 1, q_len, k_len], or attention takes the batch for the heads.",
)
def no_dimension_for_heads(attention_mask, q_len):
    return right.padded_mask(attention_mask, q_len)[:, 0]


@MASK.where(
    "This is a mask to be added to the scores, 0 where a key is visible and -inf where it is not; "
    "asked for is the plain one, True where it is visible.",
)
def mask_to_be_added(attention_mask, q_len):
    visible = right.padded_mask(attention_mask, q_len)
    return torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)


# ------------------------------------------------------------------------------ generate_padded


def padded_loop(
    model,
    prompts,
    max_new_tokens,
    eos_token_id,
    *,
    starts=lambda prompts, input_ids: [list(prompt) for prompt in prompts],
    end=lambda config, prompt, limit, columns: min(len(prompt) + limit, config.n_positions),
    begins_ended=True,
    choose=lambda logits, prompts, step: logits[:, -1].argmax(dim=-1),
    is_eos=lambda token, eos, step: token == eos,
    next_positions=lambda positions, config, columns: (positions[:, -1:] + 1).clamp(
        max=config.n_positions - 1
    ),
    after_the_end=lambda output, token, eos: None,
    over=all,
):
    """The right loop, with one place to go wrong for each of the mistakes below."""
    config = model.config
    right.require_requests(config, prompts, max_new_tokens, slots=len(prompts) or 1)
    input_ids, attention_mask = right.pad_left(prompts)
    columns = input_ids.shape[1]
    room = columns + max(max_new_tokens)
    kv_cache = right.PaddedCache(config, attention_mask, room, dtype=torch.float64)
    position_ids = right.padded_position_ids(attention_mask)
    outputs = starts(prompts, input_ids)
    ends = [end(config, p, n, columns) for p, n in zip(prompts, max_new_tokens, strict=True)]
    ended = [len(p) >= n and begins_ended for p, n in zip(prompts, ends, strict=True)]
    counts = [len(prompt) for prompt in prompts]
    step = 0
    while not over(ended):
        logits = model(input_ids, position_ids, kv_cache)
        next_ids = choose(logits, prompts, step)
        for row, token in enumerate(next_ids.tolist()):
            if ended[row]:
                after_the_end(outputs[row], token, eos_token_id)
            else:
                outputs[row].append(token)
                counts[row] += 1
                ended[row] = is_eos(token, eos_token_id, step) or counts[row] == ends[row]
        input_ids = next_ids[:, None]
        position_ids = next_positions(position_ids, config, columns + step)
        step += 1
    return outputs


@GENERATE.where(
    "Rows that have ended get more tokens as long as others go on: nothing follows the EOS token, "
    "or a row's own limit. Append only to rows that have not ended.",
)
def rows_never_end(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(
        model,
        prompts,
        max_new_tokens,
        eos_token_id,
        after_the_end=lambda output, token, eos: output.append(token),
    )


@GENERATE.where(
    "Rows that have ended are filled up, with EOS tokens or pads, until the others end: an output "
    "ends with its own last token.",
)
def filled_up(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(
        model,
        prompts,
        max_new_tokens,
        eos_token_id,
        after_the_end=lambda output, token, eos: output.append(eos or 0),
    )


@GENERATE.where(
    "The batch stops as soon as row 0 has ended: it stops when all have.",
)
def first_row_stops_the_batch(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(model, prompts, max_new_tokens, eos_token_id, over=lambda ended: ended[0])


@GENERATE.where(
    "The batch stops as soon as any row has ended: it stops when all have.",
)
def any_row_stops_the_batch(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(model, prompts, max_new_tokens, eos_token_id, over=any)


@GENERATE.where(
    "It computes a forward before it asks whether any row needs one: where every prompt fills the "
    "context, none does.",
)
def a_forward_before_asking(model, prompts, max_new_tokens, eos_token_id=None):
    first = True

    def over(ended):
        nonlocal first
        asked, first = not first, False
        return asked and all(ended)

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, over=over)


@GENERATE.where(
    "The tokens are right, but it always takes max(max_new_tokens) steps: once every row has "
    "ended, each forward is for nothing.",
)
def always_the_most_steps(model, prompts, max_new_tokens, eos_token_id=None):
    left = max(max_new_tokens)

    def over(ended):
        nonlocal left
        left -= 1
        return left < 0

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, over=over)


@GENERATE.where(
    "The tokens are right, but there is one forward too many: after the last row has ended nobody "
    "reads what comes back.",
)
def one_forward_too_many(model, prompts, max_new_tokens, eos_token_id=None):
    was_over = False

    def over(ended):
        nonlocal was_over
        before, was_over = was_over, all(ended)
        return before

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, over=over)


@GENERATE.where(
    "A prompt that fills the context gets another token: ask whether a row has ended before the "
    "first step too.",
)
def full_prompt_goes_on(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(model, prompts, max_new_tokens, eos_token_id, begins_ended=False)


@GENERATE.where(
    "The EOS token is missing from the end: append it, then mark the row as ended.",
)
def eos_dropped(model, prompts, max_new_tokens, eos_token_id=None):
    outputs = padded_loop(model, prompts, max_new_tokens, eos_token_id)
    return [
        o[:-1] if len(o) > len(p) and o[-1] == eos_token_id else o
        for o, p in zip(outputs, prompts, strict=True)
    ]


@GENERATE.where(
    "It goes on after the EOS token: a row has ended as soon as its newest token is eos_token_id.",
)
def eos_ignored(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(model, prompts, max_new_tokens, None)


@GENERATE.where(
    "Token 0 is never taken for EOS: compare with eos_token_id itself, for 0 counts as false.",
)
def eos_zero_is_none(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(model, prompts, max_new_tokens, eos_token_id or None)


@GENERATE.where(
    "It looks for EOS only from the second new token on: the one that the prefill gives may be EOS "
    "already.",
)
def eos_of_the_prefill_missed(model, prompts, max_new_tokens, eos_token_id=None):
    def is_eos(token, eos, step):
        return step > 0 and token == eos

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, is_eos=is_eos)


@GENERATE.where(
    "An EOS token in the prompt ends its row: look at the newest token only.",
)
def eos_in_the_prompt(model, prompts, max_new_tokens, eos_token_id=None):
    limits = [
        1 if eos_token_id in prompt else limit
        for prompt, limit in zip(prompts, max_new_tokens, strict=True)
    ]
    return padded_loop(model, prompts, limits, eos_token_id)


@GENERATE.where(
    "The outputs come in the order in which the rows ended: return them in the order of the "
    "prompts.",
)
def outputs_as_they_end(model, prompts, max_new_tokens, eos_token_id=None):
    outputs = padded_loop(model, prompts, max_new_tokens, eos_token_id)
    steps = [len(o) - len(p) for o, p in zip(outputs, prompts, strict=True)]
    return [outputs[row] for row in sorted(range(len(outputs)), key=lambda row: steps[row])]


@GENERATE.where(
    "A row that has ended is computed along, and its position has left the context: clamp it to "
    "n_positions - 1, for nobody reads what comes back.",
)
def position_leaves_the_context(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(
        model,
        prompts,
        max_new_tokens,
        eos_token_id,
        next_positions=lambda positions, config, columns: positions[:, -1:] + 1,
    )


@GENERATE.where(
    "In decode every row gets the number of its column as position, pads counted: each row goes on "
    "from its own last position.",
)
def column_as_position(model, prompts, max_new_tokens, eos_token_id=None):
    def next_positions(positions, config, columns):
        return torch.full((len(positions), 1), min(columns, config.n_positions - 1))

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, next_positions=next_positions)


@GENERATE.where(
    "The positions start again at 0 in decode: each row goes on from its own last position.",
)
def decode_positions_restart(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(
        model,
        prompts,
        max_new_tokens,
        eos_token_id,
        next_positions=lambda positions, config, columns: torch.zeros_like(positions[:, -1:]),
    )


@GENERATE.where(
    "The position stays where it is in decode: the new token stands one further than the last.",
)
def decode_position_stays(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(
        model,
        prompts,
        max_new_tokens,
        eos_token_id,
        next_positions=lambda positions, config, columns: positions[:, -1:],
    )


@GENERATE.where(
    "In decode every row gets the position of row 0: each goes on from its own last position.",
)
def position_of_the_first_row(model, prompts, max_new_tokens, eos_token_id=None):
    def next_positions(positions, config, columns):
        return (positions[:1, -1:] + 1).clamp(max=config.n_positions - 1).expand(len(positions), 1)

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, next_positions=next_positions)


@GENERATE.where(
    "The new token is read from the first column: prompts end at the last one, and so do the "
    "logits that continue them.",
)
def first_column_read(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(
        model,
        prompts,
        max_new_tokens,
        eos_token_id,
        choose=lambda logits, prompts, step: logits[:, 0].argmax(dim=-1),
    )


@GENERATE.where(
    "The new token is read at column len(prompt) - 1, where a prompt that is padded on the right "
    "would end: here all of them end at the last column.",
)
def read_as_if_padded_on_the_right(model, prompts, max_new_tokens, eos_token_id=None):
    def choose(logits, prompts, step):
        lasts = [len(prompt) - 1 if step == 0 else 0 for prompt in prompts]
        return logits[torch.arange(len(prompts)), lasts].argmax(dim=-1)

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, choose=choose)


@GENERATE.where(
    "The new token is read at the last column of the prompts in every step: a decode step returns "
    "one column only, so take the last, logits[:, -1].",
)
def last_prompt_column_read(model, prompts, max_new_tokens, eos_token_id=None):
    last = max(len(prompt) for prompt in prompts) - 1
    return padded_loop(
        model,
        prompts,
        max_new_tokens,
        eos_token_id,
        choose=lambda logits, prompts, step: logits[:, last].argmax(dim=-1),
    )


@GENERATE.where(
    "Every row gets the token of row 0: take the best token of each row, argmax(dim=-1).",
)
def token_of_the_first_row(model, prompts, max_new_tokens, eos_token_id=None):
    def choose(logits, prompts, step):
        return logits[:1, -1].argmax(dim=-1).expand(len(logits))

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, choose=choose)


@GENERATE.where(
    "Every row goes on to the largest of the limits: each has its own, max_new_tokens[row].",
)
def largest_limit_for_all(model, prompts, max_new_tokens, eos_token_id=None):
    limits = [max(max_new_tokens)] * len(prompts)
    return padded_loop(model, prompts, limits, eos_token_id)


@GENERATE.where(
    "Every row stops at the smallest of the limits: each has its own, max_new_tokens[row].",
)
def smallest_limit_for_all(model, prompts, max_new_tokens, eos_token_id=None):
    limits = [min(max_new_tokens)] * len(prompts)
    return padded_loop(model, prompts, limits, eos_token_id)


@GENERATE.where(
    "A row stops when the padded rectangle fills the context: pads take no positions, so count "
    "the row's own tokens, len(prompt) and the new ones.",
)
def pads_fill_the_context(model, prompts, max_new_tokens, eos_token_id=None):
    def end(config, prompt, limit, columns):
        return len(prompt) + min(limit, config.n_positions - columns)

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, end=end)


@GENERATE.where(
    "Rows go on when their context is full: none may become longer than config.n_positions.",
)
def context_overrun(model, prompts, max_new_tokens, eos_token_id=None):
    def end(config, prompt, limit, columns):
        return len(prompt) + limit

    return padded_loop(model, prompts, max_new_tokens, eos_token_id, end=end)


@GENERATE.where(
    "Every row gets one token too many: the prefill gives the first new token already.",
)
def one_token_too_many(model, prompts, max_new_tokens, eos_token_id=None):
    limits = [limit + 1 for limit in max_new_tokens]
    return padded_loop(model, prompts, limits, eos_token_id)


@GENERATE.where(
    "The pads are in the outputs: begin each with its prompt, not with its row of the rectangle.",
)
def pads_in_the_outputs(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(
        model,
        prompts,
        max_new_tokens,
        eos_token_id,
        starts=lambda prompts, input_ids: input_ids.tolist(),
    )


@GENERATE.where(
    "The prompts are missing from the outputs: return each with its new tokens behind it.",
)
def new_tokens_only(model, prompts, max_new_tokens, eos_token_id=None):
    return padded_loop(
        model,
        prompts,
        max_new_tokens,
        eos_token_id,
        starts=lambda prompts, input_ids: [[] for _ in prompts],
    )


@GENERATE.where(
    "The caller's prompts have grown: `outputs = list(prompts)` copies the outer list only, so the "
    "new tokens go into the prompts themselves. Copy each one.",
)
def prompts_grow(model, prompts, max_new_tokens, eos_token_id=None):
    outputs = padded_loop(model, prompts, max_new_tokens, eos_token_id)
    for prompt, output in zip(prompts, outputs, strict=True):
        prompt[:] = output
    return outputs


class WholeRectangle:
    """The model, handed in every step all columns so far, with a new cache or with the old one."""

    def __init__(self, model, prompts, new_cache):
        self.config, self.model, self.new_cache = model.config, model, new_cache
        self.attention_mask = right.pad_left(prompts)[1]
        self.columns = []

    def __call__(self, input_ids, position_ids, kv_cache):
        self.columns.append((input_ids, position_ids))
        ids, positions = (torch.cat(parts, dim=1) for parts in zip(*self.columns, strict=True))
        if self.new_cache:
            kv_cache = right.PaddedCache(
                self.config, self.attention_mask, ids.shape[1], dtype=torch.float64
            )
        return self.model(ids, positions, kv_cache)


@GENERATE.where(
    "The tokens are right, but all columns are computed again in every step: hand over the column "
    "of new tokens only, for the cache holds the rest.",
)
def prefix_recomputed(model, prompts, max_new_tokens, eos_token_id=None):
    model = WholeRectangle(model, prompts, new_cache=True)
    return padded_loop(model, prompts, max_new_tokens, eos_token_id)


@GENERATE.where(
    "All columns go in although the cache holds them, and so they are there twice: in decode hand "
    "over the column of new tokens only.",
)
def prefix_handed_over_twice(model, prompts, max_new_tokens, eos_token_id=None):
    model = WholeRectangle(model, prompts, new_cache=False)
    return padded_loop(model, prompts, max_new_tokens, eos_token_id)


class OutputsSurvive:
    """As a list that is a default argument, or stands outside the function."""

    def __init__(self):
        self.outputs = []

    def __call__(self, model, prompts, max_new_tokens, eos_token_id=None):
        self.outputs += padded_loop(model, prompts, max_new_tokens, eos_token_id)
        return self.outputs


GENERATE.append(
    Misconception(
        "outputs_survive_into_next_batch",
        "The outputs of an earlier batch come back with those of this one: begin every call with a "
        "new list, not with one outside the function or on a default argument.",
        OutputsSurvive(),
    )
)


# ---------------------------------------------------------------------------------- utilisation


@UTILISATION.where(
    "Request 0 counts as idle: 0 is false in Python, so ask `request is not None`.",
)
def request_zero_is_idle(trace):
    served = [bool(request) for step in trace for request in step]
    return sum(served) / len(served)


@UTILISATION.where(
    "This is the share that was idle: count the slots that served a request.",
)
def idle_share(trace):
    return 1 - right.utilisation(trace)


@UTILISATION.where(
    "This is the share of steps in which every slot was busy: count slots, not steps.",
)
def full_steps(trace):
    return sum(None not in step for step in trace) / len(trace)


@UTILISATION.where(
    "This is the share of steps in which anybody was served: count slots, not steps.",
)
def steps_with_anybody(trace):
    return sum(any(request is not None for request in step) for step in trace) / len(trace)


@UTILISATION.where(
    "This counts requests, each of them once, where it should count every slot in every step that "
    "served one.",
)
def requests_counted(trace):
    requests = {request for step in trace for request in step if request is not None}
    return len(requests) / (len(trace) * len(trace[0]))


@UTILISATION.where(
    "This is how many slots are busy on average: divide by the number of slots too, to get a share "
    "between 0 and 1.",
)
def busy_slots_per_step(trace):
    return right.utilisation(trace) * len(trace[0])


@UTILISATION.where(
    "This is the number of busy slots, not their share: divide by the number of all.",
)
def busy_slots_counted(trace):
    return right.utilisation(trace) * len(trace) * len(trace[0])


@UTILISATION.where(
    "The number of busy slots is divided by the slots of one step: there are as many again in "
    "every other step.",
)
def divided_by_one_step(trace):
    return right.utilisation(trace) * len(trace)


@UTILISATION.where(
    "This is in per cent: asked for is the share, between 0 and 1.",
)
def in_per_cent(trace):
    return 100 * right.utilisation(trace)


@UTILISATION.where(
    "This is 0 unless every slot is always busy: `//` drops what is behind the point, so divide "
    "with `/`.",
)
def whole_numbers_only(trace):
    return int(right.utilisation(trace))


@UTILISATION.where(
    "Steps in which nobody is served are left out: their slots are idle, and they count.",
)
def idle_steps_left_out(trace):
    return right.utilisation([step for step in trace if step.count(None) < len(step)])


@UTILISATION.where(
    "Only the last step is counted: go through all of them.",
)
def last_step_only(trace):
    return right.utilisation(trace[-1:])


# ------------------------------------------------------------------------------ SlotCache.select


def choose_slots(cache, slots):
    """The given lines."""
    cache.slots = torch.tensor(slots)
    cache.rows = slice(None) if list(slots) == list(range(len(cache.lengths))) else cache.slots


def keep(cache, slots, positions, k_len=None, visible=causal_mask):
    """The right `select`, once the positions are there."""
    choose_slots(cache, slots)
    cache.positions = positions
    k_len = int(positions.max()) + 1 if k_len is None else k_len
    cache.mask = visible(positions, torch.arange(k_len).unsqueeze(0))
    return positions


def right_positions(cache, slots, q_len):
    return cache.lengths[torch.tensor(slots), None] + torch.arange(q_len)


@SELECT.where(
    "Every row begins at the length of the first selected slot: each slot has its own, "
    "self.lengths[self.slots].",
)
def length_of_the_first_row(self: Any, slots, q_len):
    positions = right_positions(self, slots, q_len)[:1].repeat(len(slots), 1)
    return keep(self, slots, positions)


@SELECT.where(
    "Every row begins at the length of the longest slot, as if all were padded to it: each slot "
    "has its own length, self.lengths[self.slots].",
)
def length_of_the_longest_row(self: Any, slots, q_len):
    longest = self.lengths[torch.tensor(slots)].max()
    return keep(self, slots, (longest + torch.arange(q_len)).repeat(len(slots), 1))


@SELECT.where(
    "Row r takes the length of slot r: row r belongs to slot slots[r], so take "
    "self.lengths[self.slots].",
)
def row_taken_for_slot(self: Any, slots, q_len):
    return keep(self, slots, right_positions(self, range(len(slots)), q_len))


@SELECT.where(
    "The positions start at 0 in every forward: new tokens follow those that the slot holds.",
)
def positions_restart(self: Any, slots, q_len):
    return keep(self, slots, torch.arange(q_len).repeat(len(slots), 1))


@SELECT.where(
    "Every position is one too high: a slot that holds n tokens has them at 0 to n - 1, and the "
    "next goes to n.",
)
def positions_one_too_high(self: Any, slots, q_len):
    return keep(self, slots, right_positions(self, slots, q_len) + 1)


@SELECT.where(
    "Every position is one too low: the first new token would go over the last one that the slot "
    "holds.",
)
def positions_one_too_low(self: Any, slots, q_len):
    return keep(self, slots, (right_positions(self, slots, q_len) - 1).clamp(min=0))


@SELECT.where(
    "All the new tokens of a row get the same position: they follow one another, so add "
    "torch.arange(q_len).",
)
def one_position_for_all_tokens(self: Any, slots, q_len):
    return keep(self, slots, right_positions(self, slots, 1).repeat(1, q_len))


@SELECT.where(
    "Only one position comes for each row: there are q_len new tokens, so add torch.arange(q_len).",
)
def one_position_a_row(self: Any, slots, q_len):
    return keep(self, slots, right_positions(self, slots, 1))


@SELECT.where(
    "The mask hides nothing: a shorter row sees what lies beyond its length, left there by whoever "
    "had the slot before, and a chunk sees its own future. Build it with causal_mask.",
)
def nothing_hidden(self: Any, slots, q_len):
    def visible(queries, keys):
        return torch.ones(*queries.shape, keys.shape[1], dtype=torch.bool)[:, None]

    return keep(self, slots, right_positions(self, slots, q_len), visible=visible)


@SELECT.where(
    "Each row sees all of its own tokens, but in a chunk the first of them see those after them: "
    "compare every key with the query's position, causal_mask(self.positions, key_positions).",
)
def future_of_a_chunk_seen(self: Any, slots, q_len):
    def visible(queries, keys):
        return causal_mask(queries[:, -1:].expand_as(queries), keys)

    return keep(self, slots, right_positions(self, slots, q_len), visible=visible)


@SELECT.where(
    "The new tokens don't see themselves: the mask lets them see what the slot held before. A key "
    "at the query's own position is visible too.",
)
def new_tokens_hidden(self: Any, slots, q_len):
    def visible(queries, keys):
        return causal_mask(queries[:, :1].expand_as(queries) - 1, keys)

    return keep(self, slots, right_positions(self, slots, q_len), visible=visible)


@SELECT.where(
    "Every row gets the mask of the first: each has a length of its own, and with another's it "
    "sees too little, or what the slot's last owner has left there.",
)
def mask_of_the_first_slot(self: Any, slots, q_len):
    def visible(queries, keys):
        return causal_mask(queries[:1], keys).repeat(len(queries), 1, 1, 1)

    return keep(self, slots, right_positions(self, slots, q_len), visible=visible)


@SELECT.where(
    "The queries of the mask start at 0: they stand at self.positions, behind what the slots hold.",
)
def mask_from_zero(self: Any, slots, q_len):
    def visible(queries, keys):
        return causal_mask(torch.arange(q_len).expand_as(queries), keys)

    return keep(self, slots, right_positions(self, slots, q_len), visible=visible)


@SELECT.where(
    "The mask goes over the whole memory of a slot, so attention would read all of it: it needs as "
    "many columns as the longest of the selected rows has tokens.",
)
def mask_over_the_reserved_memory(self: Any, slots, q_len):
    return keep(self, slots, right_positions(self, slots, q_len), k_len=self.max_length)


@SELECT.where(
    "The mask is as wide as the longest of all slots: those that are not selected don't take part, "
    "so only the rows of this forward count.",
)
def as_wide_as_the_longest_of_all(self: Any, slots, q_len):
    k_len = int(self.lengths.max()) + q_len
    return keep(self, slots, right_positions(self, slots, q_len), k_len=k_len)


@SELECT.where(
    "The mask is as wide as the first row needs: the longest one decides.",
)
def as_wide_as_the_first_row(self: Any, slots, q_len):
    positions = right_positions(self, slots, q_len)
    return keep(self, slots, positions, k_len=int(positions[0].max()) + 1)


@SELECT.where(
    "The mask has one column too few: with n as its highest position, a row has n + 1 keys, for "
    "the first stands at 0.",
)
def mask_one_column_short(self: Any, slots, q_len):
    positions = right_positions(self, slots, q_len)
    return keep(self, slots, positions, k_len=int(positions.max()))


@SELECT.where(
    "The mask is right but for its shape: a 1 for the heads belongs at dimension 1, "
    "[rows, 1, q_len, k_len], or attention takes the rows for the heads.",
)
def mask_without_heads(self: Any, slots, q_len):
    positions = keep(self, slots, right_positions(self, slots, q_len))
    self.mask = self.mask[:, 0]
    return positions


@SELECT.where(
    "The lengths have grown already: nothing is stored yet. They grow in `attend`, when the last "
    "layer has been served.",
)
def lengths_grow_in_select(self: Any, slots, q_len):
    positions = keep(self, slots, right_positions(self, slots, q_len))
    self.lengths[self.slots] += q_len
    return positions


@SELECT.where(
    "The positions are kept, but don't come back: the caller hands them to the model as position "
    "ids, so return them.",
)
def nothing_returned(self: Any, slots, q_len):
    keep(self, slots, right_positions(self, slots, q_len))


@SELECT.where(
    "The positions come back but are not kept: `attend` needs self.positions and self.mask.",
)
def nothing_kept(self: Any, slots, q_len):
    choose_slots(self, slots)
    return right_positions(self, slots, q_len)


# ------------------------------------------------------------------------------ SlotCache.attend


def store_in_slots(cache, layer, keys, values, slots=None, positions=None, into=None):
    slots = cache.slots if slots is None else slots
    positions = cache.positions if positions is None else positions
    into = layer if into is None else into
    cache.keys[into][slots[:, None], :, positions] = keys.transpose(1, 2)
    cache.values[into][slots[:, None], :, positions] = values.transpose(1, 2)


def grow(cache, layer, q_len, at_layer=-1):
    if layer == range(len(cache.keys))[at_layer]:
        cache.lengths[cache.slots] += q_len


def read_slots(cache, layer, queries, **other):
    rows, mask = other.get("rows", cache.slots), other.get("mask", cache.mask)
    k_len = other.get("k_len", cache.mask.shape[-1])
    keys, values = cache.keys[layer, rows, :, :k_len], cache.values[layer, rows, :, :k_len]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


@ATTEND.where(
    "Row r is stored in slot r: it belongs in slot slots[r], so index with self.slots.",
)
def stored_by_row(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values, slots=torch.arange(len(keys)))
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries)


@ATTEND.where(
    "It reads slot r for row r: row r belongs to slot slots[r], so read self.rows.",
)
def read_by_row(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries, rows=torch.arange(len(queries)))


@ATTEND.where(
    "Row r is stored in slot r and read from there, and so overwrites whoever has that slot: it "
    "belongs in slot slots[r].",
)
def row_is_slot(self: Any, layer, queries, keys, values):
    rows = torch.arange(len(keys))
    store_in_slots(self, layer, keys, values, slots=rows)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries, rows=rows)


@ATTEND.where(
    "The slots are taken in ascending order, whatever order they were selected in: row r belongs "
    "to slot slots[r].",
)
def slots_sorted(self: Any, layer, queries, keys, values):
    slots = self.slots.sort().values
    store_in_slots(self, layer, keys, values, slots=slots)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries, rows=slots)


@ATTEND.where(
    "The new tokens of every row are stored at the positions of the first: each row has its own, "
    "self.positions.",
)
def stored_at_the_first_rows_positions(self: Any, layer, queries, keys, values):
    positions = self.positions[:1].expand(self.positions.shape)
    store_in_slots(self, layer, keys, values, positions=positions)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries)


@ATTEND.where(
    "The new tokens of every row are stored where the longest row has them: each row has its own "
    "positions, self.positions.",
)
def stored_at_the_longest_rows_positions(self: Any, layer, queries, keys, values):
    longest = self.positions.max(dim=0).values.expand(self.positions.shape)
    store_in_slots(self, layer, keys, values, positions=longest)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries)


@ATTEND.where(
    "New tokens are always stored at the front of their slot, over those that it holds: they "
    "belong at self.positions.",
)
def stored_at_the_front(self: Any, layer, queries, keys, values):
    positions = torch.arange(keys.shape[2]).expand(self.positions.shape)
    store_in_slots(self, layer, keys, values, positions=positions)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries)


@ATTEND.where(
    "Of several new tokens only the last is stored: all q_len of them belong at self.positions.",
)
def last_token_stored(self: Any, layer, queries, keys, values):
    last = self.positions[:, -1:]
    store_in_slots(self, layer, keys[:, :, -1:], values[:, :, -1:], positions=last)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries)


@ATTEND.where(
    "Nothing is stored: indexing with a tensor makes a copy, and an index behind it writes to that "
    "copy. Put slots, heads and positions into one indexing.",
)
def written_to_a_copy(self: Any, layer, queries, keys, values):
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries)


@ATTEND.where(
    "Heads and tokens have changed places on the way: with two index tensors around the heads, "
    "the place is [rows, q_len, heads, head_dim], so transpose the keys and values.",
)
def not_transposed(self: Any, layer, queries, keys, values):
    self.keys[layer][self.slots[:, None], :, self.positions] = keys
    self.values[layer][self.slots[:, None], :, self.positions] = values
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries)


@ATTEND.where(
    "The keys and values are cut into other heads: view and reshape don't exchange dimensions. "
    "Use transpose(1, 2).",
)
def reshaped_not_transposed(self: Any, layer, queries, keys, values):
    rows, heads, q_len, head_dim = keys.shape
    at = self.slots[:, None], slice(None), self.positions
    self.keys[layer][at] = keys.reshape(rows, q_len, heads, head_dim)
    self.values[layer][at] = values.reshape(rows, q_len, heads, head_dim)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries)


@ATTEND.where(
    "The values in the cache are keys: self.values holds the values, which attention sums up.",
)
def values_are_keys(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, keys)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries)


@ATTEND.where(
    "Every layer writes to layer 0, and so overwrites the one before it: layer i's keys and values "
    "belong at self.keys[i] and self.values[i].",
)
def one_layer_for_all(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values, into=0)
    grow(self, layer, queries.shape[2])
    return read_slots(self, 0, queries)


@ATTEND.where(
    "Attention comes before the new tokens are stored, so they can't see themselves: store first, "
    "then attend.",
)
def attends_before_storing(self: Any, layer, queries, keys, values):
    output = read_slots(self, layer, queries)
    store_in_slots(self, layer, keys, values)
    grow(self, layer, queries.shape[2])
    return output


@ATTEND.where(
    "What the slots held before is stored but not read: attend to the slots' keys and values, not "
    "to the new ones alone.",
)
def reads_new_tokens_only(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    grow(self, layer, queries.shape[2])
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


@ATTEND.where(
    "There is no mask: a shorter row sees what lies beyond its length, left there by whoever had "
    "the slot before, and a prompt sees its own future. Hand over self.mask.",
)
def no_mask(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries, mask=None)


@ATTEND.where(
    "Every row gets the mask of the first: the rows have different lengths, so hand over self.mask "
    "as it is.",
)
def mask_of_the_first_slot_for_all(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries, mask=self.mask[:1])


@ATTEND.where(
    "is_causal=True lays its triangle at the first key: right for a prompt in an empty slot, but "
    "behind other tokens it hides the newest. Hand over self.mask.",
)
def attends_with_is_causal(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    grow(self, layer, queries.shape[2])
    triangle = torch.ones(self.mask.shape[-2:], dtype=torch.bool).tril()
    return read_slots(self, layer, queries, mask=triangle)


@ATTEND.where(
    "The whole memory of the slots is read, and the mask does not reach that far: read as many "
    "keys as it has columns, self.mask.shape[-1].",
)
def whole_memory_read(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries, k_len=self.max_length)


@ATTEND.where(
    "All slots are read, whichever were selected: the queries have a row for each selected slot, "
    "so read self.rows.",
)
def all_slots_read(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    grow(self, layer, queries.shape[2])
    return read_slots(self, layer, queries, rows=slice(None))


@ATTEND.where(
    "The lengths grow in every layer: a forward adds q_len tokens once, when the last layer has "
    "been served.",
)
def lengths_grow_in_every_layer(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    self.lengths[self.slots] += queries.shape[2]
    return read_slots(self, layer, queries)


@ATTEND.where(
    "The lengths grow when layer 0 has been served: the others don't hold these tokens yet, so let "
    "them grow with the last.",
)
def lengths_grow_at_the_first_layer(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    grow(self, layer, queries.shape[2], at_layer=0)
    return read_slots(self, layer, queries)


@ATTEND.where(
    "The lengths of all slots grow, idle ones too: only the selected slots have got new tokens, "
    "self.lengths[self.slots].",
)
def all_lengths_grow(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    if layer == len(self.keys) - 1:
        self.lengths += queries.shape[2]
    return read_slots(self, layer, queries)


@ATTEND.where(
    "The length of slot r grows for row r: it is slot slots[r] that has got the tokens.",
)
def lengths_grow_by_row(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    if layer == len(self.keys) - 1:
        self.lengths[: len(queries)] += queries.shape[2]
    return read_slots(self, layer, queries)


@ATTEND.where(
    "The lengths grow by 1 whatever comes in: they grow by q_len, all the tokens that were stored.",
)
def lengths_grow_by_one(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    grow(self, layer, 1)
    return read_slots(self, layer, queries)


@ATTEND.where(
    "The lengths never grow, so the next forward overwrites these tokens: when the last layer has "
    "been served, add q_len to those of the selected slots.",
)
def lengths_never_grow(self: Any, layer, queries, keys, values):
    store_in_slots(self, layer, keys, values)
    return read_slots(self, layer, queries)


# ------------------------------------------------------------------------ ContinuousBatcher.admit


def fill(batcher, slots, take):
    """Give these slots away, as long as they are free and somebody waits."""
    admitted = []
    for slot in slots:
        if batcher.running[slot] is None and batcher.waiting:
            batcher.running[slot] = take(batcher.waiting)
            admitted.append(slot)
    return admitted


def longest_waiting(waiting):
    return waiting.popleft()


def slots_of(batcher):
    return range(len(batcher.running))


@ADMIT.where(
    "Nobody is admitted while anybody runs, which is static batching again: a slot is given away "
    "as soon as it is free.",
)
def only_when_all_are_free(self: Any):
    return [] if any(self.running) else fill(self, slots_of(self), longest_waiting)


@ADMIT.where(
    "The request that came last is served first: new requests join on the right of `waiting`, so "
    "take them from the left, popleft().",
)
def last_come_first_served(self: Any):
    return fill(self, slots_of(self), lambda waiting: waiting.pop())


@ADMIT.where(
    "The shortest prompt is served first: asked for is the request that has waited longest, or a "
    "long one may wait for ever.",
)
def shortest_first(self: Any):
    def take(waiting):
        shortest = min(waiting, key=lambda request: len(request.ids))
        waiting.remove(shortest)
        return shortest

    return fill(self, slots_of(self), take)


@ADMIT.where(
    "Only one request is admitted at a time: go on until no slot is free or nobody waits.",
)
def one_at_a_time(self: Any):
    free = [slot for slot, request in enumerate(self.running) if request is None]
    return fill(self, free[:1], longest_waiting)


@ADMIT.where(
    "It stops at the first busy slot, although there may be free ones behind it: look at every "
    "slot.",
)
def stops_at_a_busy_slot(self: Any):
    busy = [slot for slot, request in enumerate(self.running) if request is not None]
    return fill(self, range(min(busy, default=len(self.running))), longest_waiting)


@ADMIT.where(
    "Slots are given away whose requests still run: only those that are None are free.",
)
def busy_slots_given_away(self: Any):
    admitted = []
    for slot in slots_of(self):
        if self.waiting:
            self.running[slot] = self.waiting.popleft()
            admitted.append(slot)
    return admitted


@ADMIT.where(
    "The request that is admitted still waits, and will be admitted again: take it out of "
    "`waiting` with popleft().",
)
def still_waiting(self: Any):
    return fill(self, slots_of(self), lambda waiting: waiting[0])


@ADMIT.where(
    "It takes from `waiting` without asking whether anybody is there: where nobody waits, a free "
    "slot stays free.",
)
def nobody_waits(self: Any):
    admitted = []
    for slot, request in enumerate(self.running):
        if request is None:
            self.running[slot] = self.waiting.popleft()
            admitted.append(slot)
    return admitted


@ADMIT.where(
    "A new slot is opened for each newcomer: there are as many slots as the cache has. Put the "
    "request where `running` is None.",
)
def slots_added(self: Any):
    admitted = []
    for request in list(self.running):
        if request is None and self.waiting:
            self.running.append(self.waiting.popleft())
            admitted.append(len(self.running) - 1)
    return admitted


@ADMIT.where(
    "The numbers of the requests come back: asked for are the slots that they got.",
)
def numbers_returned(self: Any):
    return [self.running[slot].number for slot in fill(self, slots_of(self), longest_waiting)]


@ADMIT.where(
    "Every busy slot comes back: only those that were given away now, for each of them gets a "
    "prefill.",
)
def all_busy_slots_returned(self: Any):
    fill(self, slots_of(self), longest_waiting)
    return [slot for slot, request in enumerate(self.running) if request is not None]


@ADMIT.where(
    "Every slot that was free comes back, even one that nobody got: return those that were given "
    "away.",
)
def all_free_slots_returned(self: Any):
    free = [slot for slot, request in enumerate(self.running) if request is None]
    fill(self, slots_of(self), longest_waiting)
    return free


@ADMIT.where(
    "Nothing comes back: `step` needs the slots that were given away, to prefill them.",
)
def no_slots_returned(self: Any):
    fill(self, slots_of(self), longest_waiting)


@ADMIT.where(
    "Slot 0 is never given away: 0 is false in Python. Ask whether the request in it is None.",
)
def slot_zero_is_no_slot(self: Any):
    return fill(self, [slot for slot in slots_of(self) if slot], longest_waiting)


@ADMIT.where(
    "A free slot waits until there are requests for all free ones: whoever waits is admitted at "
    "once.",
)
def all_or_none(self: Any):
    free = self.running.count(None)
    return fill(self, slots_of(self), longest_waiting) if len(self.waiting) >= free else []


@ADMIT.where(
    "The requests that run are moved together: each has its keys and values in its own slot, so it "
    "stays there.",
)
def requests_moved_together(self: Any):
    running = [request for request in self.running if request is not None]
    self.running[:] = running + [None] * (len(self.running) - len(running))
    return fill(self, slots_of(self), longest_waiting)


# ------------------------------------------------------------------------- ContinuousBatcher.step


def busy_slots(batcher):
    return [slot for slot, request in enumerate(batcher.running) if request]


def numbers_by_slot(batcher):
    return [request.number if request else None for request in batcher.running]


def retire_the_ended(batcher, slots=None):
    for slot in busy_slots(batcher) if slots is None else slots:
        if batcher.has_ended(batcher.running[slot]):
            batcher.retire(slot)


def serve(batcher):
    """The first half of a right step: everybody who has a slot gets a token."""
    veterans = busy_slots(batcher)
    newcomers = batcher.admit()
    for slot in newcomers:
        batcher.forward([slot])
    if veterans:
        batcher.forward(veterans)
    return veterans, newcomers


@STEP.where(
    "Newcomers get two tokens in one step, prefilled and decoded: note who runs before you admit "
    "others.",
)
@torch.no_grad()
def newcomers_served_twice(self: Any):
    for slot in self.admit():
        self.forward([slot])
    if busy_slots(self):
        self.forward(busy_slots(self))
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self)


@STEP.where(
    "Newcomers and the others share a forward: a newcomer has its whole prompt to compute and the "
    "others one token, so the rows have different lengths.",
)
@torch.no_grad()
def one_forward_for_all(self: Any):
    self.admit()
    if busy_slots(self):
        self.forward(busy_slots(self))
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self)


@STEP.where(
    "All newcomers share a forward: their prompts have different lengths, so each is prefilled by "
    "one of its own.",
)
@torch.no_grad()
def newcomers_share_a_forward(self: Any):
    veterans, newcomers = busy_slots(self), self.admit()
    if newcomers:
        self.forward(newcomers)
    if veterans:
        self.forward(veterans)
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self)


@STEP.where(
    "Each of those who were running gets a forward of its own: the tokens are right, but the "
    "weights are read once for each. That they share one forward is what batching is for.",
)
@torch.no_grad()
def a_forward_for_each(self: Any):
    veterans, newcomers = busy_slots(self), self.admit()
    for slot in newcomers + veterans:
        self.forward([slot])
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self)


@STEP.where(
    "Whoever was running waits while newcomers are prefilled: in every step everybody who has a "
    "slot gets a token.",
)
@torch.no_grad()
def prefill_or_decode(self: Any):
    veterans, newcomers = busy_slots(self), self.admit()
    for slot in newcomers:
        self.forward([slot])
    if veterans and not newcomers:
        self.forward(veterans)
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self)


@STEP.where(
    "Nobody is admitted while anybody runs, which is static batching again: call `admit` in every "
    "step.",
)
@torch.no_grad()
def admits_when_nobody_runs(self: Any):
    veterans = busy_slots(self)
    if veterans:
        self.forward(veterans)
    else:
        for slot in self.admit():
            self.forward([slot])
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self)


@STEP.where(
    "Newcomers are admitted but not prefilled: each needs a forward over its prompt in this step.",
)
@torch.no_grad()
def newcomers_not_prefilled(self: Any):
    veterans = busy_slots(self)
    self.admit()
    if veterans:
        self.forward(veterans)
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self, veterans)


@STEP.where(
    "Newcomers are admitted at the end of the step, after the trace: they come first, so that they "
    "are served in this step.",
)
@torch.no_grad()
def admits_last(self: Any):
    veterans = busy_slots(self)
    if veterans:
        self.forward(veterans)
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self)
    for slot in self.admit():
        self.forward([slot])


@STEP.where(
    "A slot is given away in the same step in which its request ended: one that becomes free goes "
    "to the next request in the next step.",
)
@torch.no_grad()
def freed_slots_given_away_at_once(self: Any):
    serve(self)
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self)
    for slot in self.admit():
        self.forward([slot])


@STEP.where(
    "Requests are retired before the trace is written: the step that served them last shows their "
    "slot idle.",
)
@torch.no_grad()
def retired_before_the_trace(self: Any):
    serve(self)
    retire_the_ended(self)
    self.trace.append(numbers_by_slot(self))


@STEP.where(
    "The trace is written before newcomers are admitted: they are served in this step, so it shows "
    "them too.",
)
@torch.no_grad()
def trace_without_newcomers(self: Any):
    self.trace.append(numbers_by_slot(self))
    serve(self)
    retire_the_ended(self)


@STEP.where(
    "Nothing is written to the trace: append a list with the number of the request in each slot.",
)
@torch.no_grad()
def no_trace(self: Any):
    serve(self)
    retire_the_ended(self)


@STEP.where(
    "The trace holds `self.running` itself, a list that goes on changing: append a new list with "
    "the requests' numbers.",
)
@torch.no_grad()
def trace_holds_the_list_itself(self: Any):
    serve(self)
    self.trace.append(self.running)
    retire_the_ended(self)


@STEP.where(
    "The trace lists the busy slots: it has a place for each slot, with the number of the request "
    "in it, or None.",
)
@torch.no_grad()
def trace_of_slots(self: Any):
    serve(self)
    self.trace.append(busy_slots(self))
    retire_the_ended(self)


@STEP.where(
    "The trace leaves idle slots out: it has a place for each slot, None where nobody was served.",
)
@torch.no_grad()
def trace_without_idle_slots(self: Any):
    serve(self)
    self.trace.append([request.number for request in self.running if request])
    retire_the_ended(self)


@STEP.where(
    "Request 0 is shown as idle: 0 is false in Python, so ask whether there is a request, not "
    "whether its number is true.",
)
@torch.no_grad()
def request_zero_shown_idle(self: Any):
    serve(self)
    self.trace.append([number or None for number in numbers_by_slot(self)])
    retire_the_ended(self)


@STEP.where(
    "Nobody is ever retired: a request that has ended keeps its slot, and gets more tokens. Call "
    "`retire` for each that `has_ended`.",
)
@torch.no_grad()
def nobody_retired(self: Any):
    serve(self)
    self.trace.append(numbers_by_slot(self))


@STEP.where(
    "The EOS token ends nobody: ask `has_ended`, which looks for it besides the length.",
)
@torch.no_grad()
def eos_not_checked(self: Any):
    serve(self)
    self.trace.append(numbers_by_slot(self))
    for slot in busy_slots(self):
        if len(self.running[slot].ids) == self.running[slot].end:
            self.retire(slot)


@STEP.where(
    "Token 0 is never taken for EOS: leave that to `has_ended`, for 0 counts as false.",
)
@torch.no_grad()
def eos_zero_missed(self: Any):
    self.eos_token_id = self.eos_token_id or None
    right.ContinuousBatcher.step(self)


@STEP.where(
    "An EOS token in the prompt ends the request: leave it to `has_ended`, which looks at the "
    "newest token only.",
)
@torch.no_grad()
def eos_in_the_prompt_ends(self: Any):
    serve(self)
    self.trace.append(numbers_by_slot(self))
    for slot in busy_slots(self):
        request = self.running[slot]
        if self.eos_token_id in request.ids or self.has_ended(request):
            self.retire(slot)


@STEP.where(
    "A newcomer that has ended with its first token keeps its slot: look at everybody who was "
    "served, not only at those who were running before.",
)
@torch.no_grad()
def newcomers_not_retired(self: Any):
    veterans, _ = serve(self)
    self.trace.append(numbers_by_slot(self))
    retire_the_ended(self, veterans)


@STEP.where(
    "Only one request is retired in a step: several may end at once, so look at every slot.",
)
@torch.no_grad()
def one_retired_at_a_time(self: Any):
    serve(self)
    self.trace.append(numbers_by_slot(self))
    for slot in busy_slots(self):
        if self.has_ended(self.running[slot]):
            self.retire(slot)
            break


@STEP.where(
    "Requests that have ended are found at the start of the next step: retire them at the end of "
    "the one in which they ended.",
)
@torch.no_grad()
def retired_a_step_late(self: Any):
    retire_the_ended(self)
    serve(self)
    self.trace.append(numbers_by_slot(self))


@STEP.where(
    "The slot is made None, but its memory is not freed: the next request finds the length of the "
    "last one there. Call `retire`, which does both.",
)
@torch.no_grad()
def memory_not_freed(self: Any):
    serve(self)
    self.trace.append(numbers_by_slot(self))
    for slot in busy_slots(self):
        request = self.running[slot]
        if self.has_ended(request):
            self.outputs[request.number] = request.ids
            self.running[slot] = None


@STEP.where(
    "The output of a request that has ended is lost: call `retire`, which keeps it before it frees "
    "the slot.",
)
@torch.no_grad()
def outputs_not_kept(self: Any):
    serve(self)
    self.trace.append(numbers_by_slot(self))
    for slot in busy_slots(self):
        if self.has_ended(self.running[slot]):
            self.running[slot] = None
            self.kv_cache.free(slot)
