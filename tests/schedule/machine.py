"""A toy engine that carries rounds out on real slots, so that a wrong decision reads a wrong value.

The value of a position is a hash of all tokens up to it, as a KV entry depends on them all; a sampled token
is a function of the last value. So any block that is shared, copied, moved or reused wrongly shows up.
"""

import random

from kvroof.memory.blocks import Blocks
from kvroof.memory.prefix_tree import PrefixTree, block_keys
from kvroof.schedule.policies import Policy
from kvroof.schedule.scheduler import Scheduler


def value(tokens):
    """Return what the cache holds for the last of `tokens`."""
    return hash(tuple(tokens))


def sample(last_value):
    return last_value % 5


def expected(prompt, output):
    """Return the tokens that a prompt is answered with, however it is scheduled."""
    tokens = list(prompt)
    for _ in range(output):
        tokens.append(sample(value(tokens)))
    return tokens[len(prompt) :]


class Machine:
    """A scheduler with slots behind it."""

    def __init__(self, policy, num_blocks=24, block_size=4, *, host_blocks=0, reuse=False, window=None):
        self.blocks = Blocks(num_blocks, block_size, host_blocks=host_blocks)
        self.tree = PrefixTree(self.blocks) if reuse else None
        self.scheduler = Scheduler(policy, self.blocks, self.tree, window=window)
        self.window, self.policy = window, policy
        self.device = [[None] * block_size for _ in range(num_blocks)]
        self.host = [[None] * block_size for _ in range(host_blocks)]
        self.tokens, self.prompts = {}, {}
        self.rounds = []
        self.computed_tokens = 0

    def add(self, request, prompt, output, **how):
        keys = block_keys(prompt, self.blocks.block_size)
        self.scheduler.add(request, len(prompt), output, keys=keys if self.tree is not None else (), **how)
        self.tokens[request], self.prompts[request] = list(prompt), list(prompt)

    def slot(self, request, position):
        table, size = self.blocks.block_table(request), self.blocks.block_size
        return self.device[table[position // size]], position % size

    def step(self):
        """Run one round and return it."""
        decided = self.scheduler.next_round()
        for src, dst in decided.swapped_out:
            self.host[dst] = list(self.device[src])
        for src, dst in decided.swapped_in:
            self.device[dst] = list(self.host[src])
        for src, dst in decided.copies:
            self.device[dst] = list(self.device[src])
        for request, query_len, kv_len, samples in decided.members:
            tokens = self.tokens[request]
            assert kv_len <= len(tokens)
            first = 0 if self.window is None else max(kv_len - query_len - self.window + 1, 0)
            for position in range(first, kv_len - query_len):
                block, at = self.slot(request, position)
                assert block[at] == value(tokens[: position + 1]), "a query reads what it did not write"
            for position in range(kv_len - query_len, kv_len):
                block, at = self.slot(request, position)
                block[at] = value(tokens[: position + 1])
            self.computed_tokens += query_len
            if samples:
                assert kv_len == len(tokens)
                block, at = self.slot(request, kv_len - 1)
                tokens.append(sample(block[at]))
        finished = self.scheduler.complete(decided)
        assert finished == decided.finished
        self.rounds.append(decided)
        return decided

    def run(self, most=20_000):
        """Run until every request is finished."""
        while self.scheduler.jobs:
            assert self.step().members, "requests wait and nothing runs"
            assert len(self.rounds) < most
        return self

    def answer(self, request):
        return self.tokens[request][len(self.prompts[request]) :]


def random_policy(source):
    """Return a policy and choices for a `Machine`, with limits small enough to be met."""
    name = source.choice(["static", "continuous", "chunked"])
    seqs = source.randint(1, 6)
    policy = Policy(
        name=name,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + source.randint(0, 12),
        reserve=source.choice(["none", "prompt", "output"]),
        preemption=source.choice(["recompute", "swap"]),
    )
    reuse = source.random() < 0.5
    choices = {
        "num_blocks": source.randint(8, 24),
        "block_size": source.choice([1, 2, 4]),
        "host_blocks": source.choice([0, 6, 30]),
        "reuse": reuse,
        "window": None if reuse else source.choice([None, None, 3, 7]),
    }
    return policy, choices


def random_prompt(source, longest):
    return [source.randint(0, 1) for _ in range(source.randint(1, longest))]


def random_source(seed):
    return random.Random(seed)
