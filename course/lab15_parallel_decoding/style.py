"""Lab 15 in another style: paths that climb, sets of ancestors, parts that are put together."""

from itertools import takewhile


def climbing(parents, node):
    """The nodes from one up to node 0."""
    while node >= 0:
        yield node
        node = parents[node]


def jacobi_step(guess, best):
    ### BEGIN SOLUTION
    both = zip(guess, best, strict=False)
    right = len([*takewhile(lambda pair: pair[0] == pair[1], both)])
    certain, following = [], []
    for place, token in enumerate(best):
        (certain if place <= right else following).append(token)
    return certain, following
    ### END SOLUTION


def tree_layout(parents):
    require_tree(parents)
    ### BEGIN SOLUTION
    size = len(parents)
    ancestors = [[*climbing(parents, node)] for node in range(size)]
    mask = torch.zeros((size, size), dtype=torch.bool)
    for node, seen in enumerate(ancestors):
        mask[node, seen] = True
    return mask, torch.tensor([len(seen) - 1 for seen in ancestors], dtype=torch.long)
    ### END SOLUTION


def accept_path(parents, tokens, best):
    ### BEGIN SOLUTION
    children = {}
    for node in range(1, len(parents)):
        children[parents[node], tokens[node]] = node  # of equal siblings, the last one
    node, path = 0, []
    while node is not None:
        path.append(node)
        node = children.get((node, best[node]))
    return path
    ### END SOLUTION


class TreeCache:
    def keep(self, start, path):
        require_path(path, self.length - start)
        ### BEGIN SOLUTION
        for memory in (self.keys, self.values):
            for place, node in enumerate(path, start):  # from the front, so that none is lost
                memory[:, :, :, place] = memory[:, :, :, start + node].clone()
        self.truncate(start + len(path))
        ### END SOLUTION


def verify_candidates(target, candidates, uniforms):
    ### BEGIN SOLUTION
    *judging, drawing = uniforms
    probs = target / target.sum()
    for index, (candidate, uniform) in enumerate(zip(candidates, judging, strict=True)):
        if uniform < probs[candidate]:
            return index, candidate
        keep = torch.arange(len(probs)) != candidate
        probs = torch.where(keep, probs, 0)
        probs = probs / probs.sum()
    return None, draw(probs.unsqueeze(0), drawing.reshape(1)).item()
    ### END SOLUTION


def generate_tree(target, proposer, prompt, max_new_tokens, choose=greedy, eos_token_id=None):
    ids, end = list(prompt), end_of(target.config, prompt, max_new_tokens)
    kv_cache, calls = new_tree_cache(target, end + proposer.nodes), []
    if len(ids) == end:
        return Decoded(ids, calls)
    ids.append(choose(Tree(ids[-1]), new_logits(target, ids, kv_cache)[-1:])[1])
    ### BEGIN SOLUTION
    ended = ids[-1] == eos_token_id
    while not ended and len(ids) < end:
        held = len(ids) - 1  # all but the newest
        tree = proposer.propose([*ids], end - held - 2, kv_cache)
        mask, depth = tree_layout(tree.parents)
        rows = forward(target, kv_cache, tree.tokens, depth + held, mask)
        nodes, last = choose(tree, rows)
        gained = []
        for token in [tree.tokens[node] for node in nodes if node] + [last]:
            gained.append(token)
            if ended := token == eos_token_id:
                break
        proposer.learn([int(row.argmax()) for row in rows], nodes)
        kv_cache.keep(held, nodes)
        calls += [Call(tree, nodes, gained)]
        ids = ids + gained
    ### END SOLUTION
    return Decoded(ids, calls)


class NGramPool:
    def add(self, gram):
        require_gram(gram, self.n)
        ### BEGIN SOLUTION
        first, *others = gram
        known = self.grams.setdefault(first, [])
        if tuple(others) in known:
            known.remove(tuple(others))
        known.insert(0, tuple(others))
        del known[self.size :]
        ### END SOLUTION


def head_labels(own, heads):
    require_size("number of heads", heads)
    ### BEGIN SOLUTION
    padding = torch.full((len(own), heads), -100, dtype=own.dtype)
    padded = torch.cat([own, padding], dim=1)
    return padded[:, 1:].unfold(1, heads, 1)
    ### END SOLUTION
