"""The router's choices, counted and sent to slots, in host memory of numpy and torch."""

import unittest

import numpy as np
import torch

import eplb
import ranks

EXPERTS, TOP_K, TOKENS = 8, 3, 500
KINDS = [(kind, dtype) for kind in (np.asarray, torch.as_tensor) for dtype in ("int32", "int64")]


def random_ids(dtype="int64"):
    """Some out of range on both sides."""
    return np.random.RandomState(5).randint(-1, EXPERTS + 1, (TOKENS, TOP_K)).astype(dtype)


def plain_counts(ids, is_padding=None):
    counts = np.zeros(EXPERTS + 1, np.int64)
    for token, chosen in enumerate(ids.tolist()):
        for expert in chosen:
            if is_padding is None or not is_padding[token]:
                counts[expert if 0 <= expert < EXPERTS else EXPERTS] += 1
    return counts.tolist()


def padded():
    return np.arange(TOKENS) % 5 == 0


def lone_client():
    return eplb.Client.connect(num_layers=2, num_experts=EXPERTS)


class TokensTest(ranks.RankTest):
    def test_counts_are_those_of_a_plain_loop(self):
        with lone_client() as client:
            for kind, dtype in KINDS:
                ids = random_ids(dtype)
                counters = client.count_tokens(kind(ids))
                self.assertEqual((type(counters), counters.tolist()), (type(kind(ids)), plain_counts(ids)))
                self.assertIs(client.count_tokens(kind(ids), counters, is_padding=kind(padded())), counters)
                more = plain_counts(ids, padded())
                self.assertEqual(counters.tolist(), [one + two for one, two in zip(plain_counts(ids), more)])
                client.record(0, counters[:-1])
            self.assertEqual(client.count_tokens(random_ids()[:0]).tolist(), [0] * (EXPERTS + 1))

    def test_choices_go_to_the_replicas_of_their_expert(self):
        with ranks.connect(self.directory, 0, 1, num_slots=16) as client:
            experts = ranks.Experts(client, ranks.numpy_zeros)
            client.finish_registration()
            ids = random_ids()
            whole = client.route_tokens(1, ids, first_token=70)
            held = np.append(client.placement.physical_to_logical_map[1], -1)
            self.assertEqual(held[whole].tolist(), np.where((ids >= 0) & (ids < EXPERTS), ids, -1).tolist())
            self.assertEqual(set(whole[whole >= 0].tolist()), set(range(16)))
            rest = client.route_tokens(1, torch.from_numpy(ids[200:]).int(), first_token=270)
            self.assertEqual((rest.dtype, rest.tolist()), (torch.int32, whole[200:].tolist()))
            counters, in_place = np.zeros(EXPERTS + 1, np.int64), ids.copy()
            self.assertIs(client.route_tokens(1, in_place, slots=in_place, counters=counters, is_padding=padded(), first_token=70),
                          in_place)
            self.assertEqual(in_place.tolist(), np.where(padded()[:, None], -1, whole).tolist())
            self.assertEqual(counters.tolist(), plain_counts(ids, padded()))
            client.record(1, counters[:-1])
            experts.verify()

    def test_mistakes_are_named(self):
        with lone_client() as client:
            client.register(np.zeros((EXPERTS, 2)), name="w", layer=0)
            client.register(np.zeros((EXPERTS, 2)), name="v", layer=1)
            client.finish_registration()
            ids = random_ids()
            slots = np.zeros_like(ids)
            frozen = np.zeros(EXPERTS + 1, np.int64)
            frozen.flags.writeable = False
            for said, call in (
                    ("expert_ids: list, expected int32 or int64 \\[tokens, top_k\\]", lambda: client.count_tokens([[1]])),
                    ("expert_ids: float32 \\[4, 2\\], expected int32", lambda: client.count_tokens(torch.zeros(4, 2))),
                    ("expert_ids: int64 \\[500\\], expected .*\\[tokens, top_k\\]", lambda: client.count_tokens(ids[:, 0])),
                    ("expert_ids: not contiguous", lambda: client.count_tokens(ids[:, :2])),
                    ("counters: int64 \\[8\\], expected int64 \\[9\\]", lambda: client.count_tokens(ids, frozen[1:])),
                    ("counters: read-only", lambda: client.count_tokens(ids, frozen)),
                    ("is_padding: bool \\[3\\], expected bool or uint8 \\[500\\]",
                     lambda: client.count_tokens(ids, is_padding=padded()[:3])),
                    ("slots: int32 \\[500, 3\\], expected int64 \\[500, 3\\]",
                     lambda: client.route_tokens(0, ids, slots=slots.astype(np.int32))),
                    ("layer is 2, expected 0..1", lambda: client.route_tokens(2, ids)),
                    ("layer: 'a', expected an integer", lambda: client.route_tokens("a", ids))):
                with self.assertRaisesRegex(eplb.InvalidArgument, said):
                    call()


if __name__ == "__main__":
    unittest.main()
