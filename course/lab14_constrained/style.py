"""Lab 14 in another style: sets that grow, a loop per token, recursion, sets of states."""


def walk(automaton, state, text):
    """The state after a text; None if it leaves the language."""
    for byte in text:
        state = None if state is None else automaton.edges[state].get(byte)
    return state


def allowed_choices(choices, generated, eos):
    ### BEGIN SOLUTION
    found = set()
    for choice in choices:
        whole = [*choice, eos]
        if len(generated) < len(whole):
            *before, token = whole[: len(generated) + 1]
            if before == list(generated):
                found.add(token)
    return found
    ### END SOLUTION


def constrain(logits, allowed):
    ### BEGIN SOLUTION
    missing = logits.shape[-1] - allowed.shape[-1]
    padded = torch.nn.functional.pad(allowed, (0, missing), value=False)
    return torch.where(padded, logits, -torch.inf)
    ### END SOLUTION


def derivative(regex, byte):
    ### BEGIN SOLUTION
    if isinstance(regex, AnyOf):
        return (NOTHING, EMPTY)[byte in regex.allowed]
    if isinstance(regex, Star):
        return then(derivative(regex.body, byte), regex)
    if isinstance(regex, Then):
        begun = [then(derivative(regex.first, byte), regex.second)]
        if nullable(regex.first):
            begun.append(derivative(regex.second, byte))
        return either(*begun)
    result = NOTHING
    for option in getattr(regex, "options", ()):
        result = either(result, derivative(option, byte))
    return result
    ### END SOLUTION


def token_index(automaton, vocabulary):
    ### BEGIN SOLUTION
    states = range(len(automaton.edges))
    table = [{} for _ in states]
    for token in range(len(vocabulary)):
        for state in states:
            end = walk(automaton, state, vocabulary[token])
            if vocabulary[token] != b"" and end is not None:
                table[state][token] = end
    return table
    ### END SOLUTION


def generate_constrained(rows, automaton, index, max_new_tokens, eos, choose=likeliest):
    ### BEGIN SOLUTION
    texts, states = [[] for _ in rows.logits], dict.fromkeys(range(len(rows.logits)), 0)
    for step in range(max_new_tokens):
        masks = torch.full(rows.logits.shape, False)
        for mask, state in zip(masks, states.values(), strict=True):
            mask[[*index[state], *[eos] * (state in automaton.accepting)]] = True
        numbers = list(states)
        chosen = choose(constrain(rows.logits, masks), numbers)
        for number, token in zip(numbers, chosen, strict=True):
            texts[number].append(token)
            state = states.pop(number)
            if token != eos:
                states[number] = index[state][token]
        rows.become([place for place, number in enumerate(numbers) if number in states])
        if not len(rows.logits) or step == max_new_tokens - 1:
            break
        rows.append([texts[number][-1] for number in states])
    return texts
    ### END SOLUTION


def forced(automaton, state):
    ### BEGIN SOLUTION
    left, found = [*range(len(automaton.edges))], []
    while state in left:
        left.remove(state)
        ways = [*automaton.edges[state]]
        if len(ways) != 1 or state in automaton.accepting:
            break
        found += ways
        state = automaton.edges[state][ways[0]]
    return bytes(found), state
    ### END SOLUTION


def hold_back(tokens, vocabulary, allowed):
    ### BEGIN SOLUTION
    kept, before = [], b""
    whole = b"".join(vocabulary[token] for token in tokens)
    for token in tokens:
        left = len(whole) - len(before)
        if max((len(vocabulary[other]) for other in allowed(before)), default=0) > left:
            break
        kept.append(token)
        before += vocabulary[token]
    return kept
    ### END SOLUTION


def classify(region, state, vocabulary):
    ### BEGIN SOLUTION
    everything = {token for token, text in enumerate(vocabulary) if text}
    accepted = {t for t in everything if walk(region, state, vocabulary[t]) is not None}
    uncertain = set()
    for token in everything - accepted:
        text = vocabulary[token]
        if any(walk(region, state, text[:end]) in region.accepting for end in range(len(text))):
            uncertain.add(token)
    return accepted, set(range(len(vocabulary))) - accepted - uncertain, uncertain
    ### END SOLUTION
