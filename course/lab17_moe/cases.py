"""The exercises of lab 17: a router, experts, balance, capacity, a split MLP, experts on ranks."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.attempt.drivers import moe as drivers
from autograder.judging.draws import normal
from autograder.judging.exercise import Case, Exercise, case_of

Generator = torch.Generator
D, WIDTH = 3, 4  # of the experts
WIDE = 5  # more than two numbers for each choice, so that rows of `hidden` can be told from these


def picks(
    generator: Generator, tokens: int, k: int, experts: int, among: Sequence[int] = ()
) -> Int[Tensor, "tokens k"]:
    """For each token k different experts in any order, all of them or those that are named."""
    numbers = torch.tensor([*(among or range(experts))])
    order = torch.rand(tokens, len(numbers), generator=generator).argsort(dim=1)
    return numbers[order[:, :k]]


def shares(generator: Generator, tokens: int, k: int) -> Float[Tensor, "tokens k"]:
    """Weights from 0.1 up; those of a token don't add up to 1."""
    return 0.1 + 0.8 * torch.rand(tokens, k, generator=generator, dtype=torch.float64)


def numbers(*rows: str) -> Int[Tensor, "rows numbers"]:
    """A table of digits: one word for each row."""
    return torch.tensor([[int(digit) for digit in row] for row in rows])


# ------------------------------------------------------------------------------------- the router


def route_cases(generator: Generator) -> list[Case]:
    as_case = case_of("logits", "k", "renormalize")

    def case(label: str, tokens: int, experts: int, k: int, renormalize: bool) -> Case:
        return as_case(label, 2 * normal(generator, tokens, experts), k, renormalize)

    def exact(label: str, rows: list[list[float]], k: int, renormalize: bool) -> Case:
        return as_case(label, torch.tensor(rows, dtype=torch.float64), k, renormalize)

    far = [[800.0, 3.0, 801.0], [-900.0, -902.0, -903.0]]
    near = [[1.0, 1.00002, 0.99999, 1.00001], [-2.00001, -2.0, -2.00003, -1.99998]]
    return [
        case("one token, one of three experts", 1, 3, 1, False),
        case("one token, two of three experts", 1, 3, 2, False),
        case("one token, two of three experts, renormalized", 1, 3, 2, True),
        case("three tokens, two of four experts", 3, 4, 2, False),
        case("three other tokens, two of four experts", 3, 4, 2, False),
        case("three tokens, two of four experts, renormalized", 3, 4, 2, True),
        case("three other tokens, two of four, renormalized", 3, 4, 2, True),
        case("one expert for each token, renormalized", 3, 4, 1, True),
        case("as many tokens as experts, k = 3", 4, 4, 3, False),
        case("k is the number of experts", 3, 4, 4, False),
        case("k is the number of experts, renormalized", 3, 4, 4, True),
        exact("logits far apart", far, 2, False),
        exact("logits far apart, renormalized", far, 2, True),
        exact("logits that hardly differ", near, 3, False),
        case("one expert, and no other", 2, 1, 1, False),
        case("no tokens", 0, 4, 2, True),
    ]


def dispatch_cases(generator: Generator) -> list[Case]:
    case = case_of("chosen", "experts")

    def drawn(label: str, tokens: int, k: int, experts: int, *among: int) -> Case:
        return case(label, picks(generator, tokens, k, experts, among), experts)

    return [
        case("one token, one expert", numbers("0"), 1),
        case("two tokens, one choice each", numbers("1", "0"), 2),
        case("one token, two choices", numbers("20"), 3),
        drawn("four tokens, two of three experts", 4, 2, 3),
        drawn("four other tokens, two of three experts", 4, 2, 3),
        drawn("five tokens, one of three experts", 5, 1, 3),
        drawn("three tokens, three of five experts", 3, 3, 5),
        drawn("three tokens, all three experts", 3, 3, 3),
        case("all tokens choose the same expert", numbers("1", "1", "1"), 3),
        drawn("the first expert has no tokens", 4, 2, 4, 1, 2, 3),
        drawn("an expert in the middle has no tokens", 4, 2, 4, 0, 1, 3),
        drawn("the last two experts have no tokens", 4, 2, 5, 0, 1, 2),
        drawn("40 tokens, two of eight experts", 40, 2, 8),
        case("no tokens", torch.zeros(0, 2, dtype=torch.int64), 3),
    ]


# ------------------------------------------------------------------------------------ the experts


def forward_cases(generator: Generator) -> list[Case]:
    def case(
        label: str,
        tokens: int,
        k: int,
        experts: int,
        *among: int,
        weights: Tensor | None = None,
    ) -> Case:
        layer = {
            "hidden": normal(generator, tokens, D),
            "weights": shares(generator, tokens, k) if weights is None else weights,
            "chosen": picks(generator, tokens, k, experts, among),
            "w_in": normal(generator, experts, D, WIDTH),
            "w_out": normal(generator, experts, WIDTH, D),
        }
        return Case(label, layer)

    dropped = torch.tensor([[0.5, 0.0], [0.0, 0.0], [0.25, 0.75]], dtype=torch.float64)
    return [
        case("one token, one expert", 1, 1, 1),
        case("one token, two of three experts", 1, 2, 3),
        case("two tokens, one expert each", 2, 1, 2),
        case("five tokens, two of three experts", 5, 2, 3),
        case("five other tokens, two of three experts", 5, 2, 3),
        case("six tokens, one of four experts", 6, 1, 4),
        case("four tokens, all three experts", 4, 3, 3),
        case("three tokens, three of five experts", 3, 3, 5),
        case("all tokens choose the same expert", 4, 1, 3, 1),
        case("all tokens choose the same two experts", 4, 2, 4, 3, 0),
        case("an expert in the middle has no tokens", 4, 2, 4, 0, 1, 3),
        case("the first two experts have no tokens", 4, 1, 4, 2, 3),
        case("weights of 0", 3, 2, 3, weights=dropped),
        case("no tokens", 0, 2, 3),
    ]


# -------------------------------------------------------------------------- balance and capacity


def balance_cases(generator: Generator) -> list[Case]:
    as_case = case_of("probs", "chosen", "real")

    def case(label: str, tokens: int, k: int, experts: int, padding: Sequence[int] = ()) -> Case:
        """Each token goes to its likeliest experts."""
        probs = normal(generator, tokens, experts).softmax(dim=1)
        real = torch.tensor([token not in padding for token in range(tokens)])
        return as_case(label, probs, probs.topk(k, dim=1).indices, real)

    def exact(label: str, probs: list[list[float]], *chosen: str) -> Case:
        table = torch.tensor(probs, dtype=torch.float64)
        return as_case(label, table, numbers(*chosen), torch.ones(len(table), dtype=torch.bool))

    return [
        exact("one token, two experts", [[0.75, 0.25]], "0"),
        exact("two tokens, one expert each", [[0.75, 0.25], [0.25, 0.75]], "0", "1"),
        exact("all tokens go to one expert", [[0.75, 0.25], [0.5, 0.5]], "0", "0"),
        case("five tokens, one of three experts", 5, 1, 3),
        case("five tokens, two of four experts", 5, 2, 4),
        case("five other tokens, two of four experts", 5, 2, 4),
        case("four tokens, three of four experts", 4, 3, 4),
        case("three tokens, all three experts", 3, 3, 3),
        case("padding at the end", 6, 2, 4, (4, 5)),
        case("padding at the beginning", 6, 1, 3, (0, 1, 2)),
        case("one token is real", 4, 2, 3, (0, 1, 3)),
        exact("the likeliest experts aren't chosen", [[0.5, 0.3, 0.2], [0.1, 0.7, 0.2]], "2", "0"),
    ]


def keep_cases(generator: Generator) -> list[Case]:
    case = case_of("chosen", "experts", "capacity")

    def drawn(label: str, tokens: int, k: int, experts: int, capacity: int) -> Case:
        return case(label, picks(generator, tokens, k, experts), experts, capacity)

    return [
        case("one token, room for it", numbers("0"), 2, 1),
        case("two tokens, room for one", numbers("1", "1"), 2, 1),
        case("a second choice before a first one", numbers("01", "12"), 3, 1),
        case("a first choice dropped, the second kept", numbers("01", "02"), 3, 1),
        case("three tokens choose the same two experts", numbers("01", "10", "01"), 2, 2),
        case("all choose one expert, room for two", numbers("1", "1", "1", "1"), 3, 2),
        drawn("six tokens, two of three experts, room for three", 6, 2, 3, 3),
        drawn("six other tokens, two of three experts, room for three", 6, 2, 3, 3),
        drawn("eight tokens, one of three experts, room for two", 8, 1, 3, 2),
        drawn("six tokens, three of four experts, room for four", 6, 3, 4, 4),
        drawn("three tokens, all three experts, room for two", 3, 3, 3, 2),
        drawn("no room", 4, 2, 3, 0),
        drawn("room for all", 4, 2, 3, 8),
        case("no tokens", torch.zeros(0, 2, dtype=torch.int64), 3, 1),
    ]


# ------------------------------------------------------------------------------------ a split MLP


def split_cases(generator: Generator) -> list[Case]:
    def case(label: str, d: int, expert_of: str = "", experts: int = 0, width: int = 0) -> Case:
        """expert_of: a digit for each neuron. If it is missing, it is drawn."""
        owners = numbers(expert_of)[0] if expert_of else torch.arange(experts * width) % experts
        if not expert_of:
            owners = owners[torch.randperm(len(owners), generator=generator)]
        f = len(owners)
        mlp = {
            "w_in": normal(generator, d, f),
            "b_in": normal(generator, f),
            "w_out": normal(generator, f, d),
        }
        return Case(label, {**mlp, "expert_of": owners, "experts": int(owners.max()) + 1})

    return [
        case("two neurons, two experts", 3, "10"),
        case("four neurons in turn", 3, "0101"),
        case("four neurons, the second expert's in the middle", 3, "0110"),
        case("six neurons, two experts", 4, "", 2, 3),
        case("six neurons, three experts", 4, "", 3, 2),
        case("six other neurons, three experts", 4, "", 3, 2),
        case("as many neurons as inputs", 6, "", 2, 3),
        case("one expert for all", 3, "0000"),
        case("an expert for each neuron", 3, "", 5, 1),
        case("neurons that are in order", 3, "001122"),
        case("more inputs than neurons", 9, "", 2, 2),
    ]


# ---------------------------------------------------------------------------------- several ranks


def exchange_cases(generator: Generator) -> list[Case]:
    def case(label: str, owner: str, *ranks: str | int, k: int = 2) -> Case:
        """owner: a digit for each expert. ranks: how many tokens each has, or a word for each
        token with the experts that it goes to."""
        experts, made = len(owner), list[dict[str, Tensor]]()
        for given in ranks:
            words = given.split() if isinstance(given, str) else []
            tokens = given if isinstance(given, int) else len(words)
            chosen = numbers(*words) if words else picks(generator, tokens, k, experts)
            hidden, weights = normal(generator, tokens, WIDE), shares(generator, *chosen.shape)
            made.append({"hidden": hidden, "weights": weights, "chosen": chosen})
        data = {
            "ranks": made,
            "owner": numbers(owner)[0],
            "w": normal(generator, experts, WIDE, WIDE),
        }
        return Case(label, data)

    return [
        case("one rank, one token", "00", "1", k=1),
        case("two ranks, one token each", "01", "1", "0", k=1),
        case("two ranks, each token stays on its own", "01", "0 0", "1", k=1),
        case("two ranks, two experts on each", "0011", "03 21", "01 23"),
        case("both experts of a token are on one rank", "0011", "23 32", "10"),
        case("two ranks, three tokens each", "0101", 3, 3),
        case("two ranks, three other tokens each", "0101", 3, 3),
        case("a rank without tokens", "0101", 4, 0),
        case("a rank without experts", "0000", 2, 3),
        case("ranks with different numbers of tokens", "1001", 1, 5),
        case("three ranks", "210012", 3, 2, 4),
        case("four ranks, one expert for each token", "3102", 2, 3, 1, 2, k=1),
        case("four ranks, two of them without tokens", "02310213", 3, 0, 4, 0),
        case("one rank, two of four experts", "0000", 4),
        case("no tokens at all", "01", 0, 0),
    ]


def hops_cases(generator: Generator) -> list[Case]:
    as_case = case_of("routes", "owner")

    def case(label: str, tokens: int, layers: int, experts: int, ranks: int) -> Case:
        routes = torch.randint(experts, (tokens, layers), generator=generator)
        owner = [torch.randperm(experts, generator=generator) % ranks for _ in range(layers)]
        return as_case(label, routes, torch.stack(owner))

    def exact(label: str, routes: str, owner: str) -> Case:
        return as_case(label, numbers(*routes.split()), numbers(*owner.split()))

    return [
        exact("one token, another rank", "01", "01 01"),
        exact("one token, another expert of the same rank", "01", "00 00"),
        exact("the same expert number, on another rank", "00", "01 10"),
        exact("there and back", "010", "01 01 01"),
        exact("two tokens, one of them moves twice", "000 010", "01 01 01"),
        case("five tokens, four layers, two ranks", 5, 4, 4, 2),
        case("five other tokens, four layers, two ranks", 5, 4, 4, 2),
        case("three ranks", 6, 3, 6, 3),
        case("as many tokens as layers and experts", 4, 4, 4, 2),
        exact("one layer", "0 1 2", "012"),
        case("one rank", 4, 3, 4, 1),
        as_case("no tokens", torch.zeros(0, 2, dtype=torch.int64), numbers("01", "10")),
        case("30 tokens, six layers, four ranks", 30, 6, 8, 4),
    ]


EXERCISES = (
    Exercise("moe.route", drivers.route, route_cases),
    Exercise("moe.dispatch", drivers.dispatch, dispatch_cases, whole=("chosen",)),
    Exercise("moe.moe_forward", drivers.moe_forward, forward_cases, whole=("chosen", "weights")),
    Exercise("moe.balance_loss", drivers.balance_loss, balance_cases, whole=("chosen",)),
    Exercise("moe.keep", drivers.keep, keep_cases, whole=("chosen",)),
    Exercise("moe.split_mlp", drivers.split_mlp, split_cases),
    Exercise("moe.exchange", drivers.exchange, exchange_cases, whole=("chosen", "weights")),
    Exercise("moe.hops", drivers.hops, hops_cases),
)
