"""Training text: seeded, made of invented words, tokenised while it is read.

Sample number i is the same sequence of tokens on every machine, whoever asks for it. An update takes
`global_batch` consecutive samples; how they are split into ranks and micro-batches decides who computes what,
never which samples an update sees.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

ONSETS, VOWELS, CODAS = "bcdfghjklmnprstvwz", "aeiou", ["", "n", "r", "s", "l"]
SYLLABLES = [onset + vowel + coda for onset in ONSETS for vowel in VOWELS for coda in CODAS]


class Corpus(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A Markov chain over invented words, each split into word pieces by greedy longest match."""

    def __init__(self, vocab: int, sequence: int, words: int, seed: int, samples: int) -> None:
        rng = random.Random(seed)
        self.sequence, self.seed, self.samples = sequence, seed, samples
        self.words = sorted({"".join(rng.choices(SYLLABLES, k=rng.randint(2, 5))) for _ in range(words)})
        pairs = [first + second for first in SYLLABLES[:70] for second in SYLLABLES[20:80]]
        letters = [chr(ord("a") + i) for i in range(26)]
        pieces = dict.fromkeys([*letters, *SYLLABLES, *pairs])
        self.piece_ids = dict(zip(pieces, range(1, vocab), strict=False))  # 0 is kept free
        self.successors = [rng.choices(range(len(self.words)), k=6) for _ in self.words]

    def __len__(self) -> int:
        return self.samples

    def word_pieces(self, word: str) -> list[int]:
        """Token ids of one word; every letter is a piece, so there is always a match."""
        ids, start = [], 0
        while start < len(word):
            end = len(word)
            while word[start:end] not in self.piece_ids:
                end -= 1
            ids.append(self.piece_ids[word[start:end]])
            start = end
        return ids

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and next-token targets, each [sequence]."""
        rng = random.Random(self.seed * 1_000_003 + index)
        word, ids = rng.randrange(len(self.words)), list[int]()
        while len(ids) <= self.sequence:
            ids += self.word_pieces(self.words[word])
            word = rng.choice(self.successors[word])
        tokens = torch.tensor(ids[: self.sequence + 1])
        return tokens[:-1], tokens[1:]


class MicroBatches(Sampler[list[int]]):
    """Sample numbers of this rank's micro-batches, update after update."""

    def __init__(self, updates: int, global_batch: int, micro_batch: int, rank: int, world_size: int) -> None:
        if global_batch % (micro_batch * world_size):
            raise ValueError(
                f"global_batch {global_batch} is not divisible by "
                f"micro_batch {micro_batch} x world size {world_size}"
            )
        self.updates, self.global_batch, self.micro_batch = updates, global_batch, micro_batch
        self.rank, self.world_size = rank, world_size
        self.accumulation = global_batch // (micro_batch * world_size)

    def __len__(self) -> int:
        return self.updates * self.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        for update in range(self.updates):
            for step in range(self.accumulation):
                first = update * self.global_batch + (step * self.world_size + self.rank) * self.micro_batch
                yield list(range(first, first + self.micro_batch))


def batches(
    corpus: Corpus, order: MicroBatches, workers: int, pin_memory: bool
) -> DataLoader[list[torch.Tensor]]:
    """Loader of (inputs, targets) micro-batches, each [micro_batch, sequence]."""
    return DataLoader(corpus, batch_sampler=order, num_workers=workers, pin_memory=pin_memory)
