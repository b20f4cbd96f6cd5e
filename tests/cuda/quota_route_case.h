// Router output at random, own quotas that fit it, and the slots that routing by quota must give:
// for the host and the device test.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "cuda/quota_route.h"
#include "tests/cuda/count_case.h"

namespace eplb::cuda::testing {

template <class ExpertId>
struct QuotaRouteCase {
  CountCase<ExpertId> choices;
  std::vector<int32_t> first_slot;
  std::vector<int32_t> replica_slot;
  std::vector<int64_t> own;
  std::vector<ExpertId> slots;  // expected
  int64_t beyond = 0;           // expected

  // Slots, counters and chunk counts are the caller's.
  QuotaRouteArgs Args() const {
    QuotaRouteArgs args{.choices = ArgsOf(choices),
                        .first_slot = first_slot.data(),
                        .replica_slot = replica_slot.data(),
                        .own = own.data(),
                        .num_slots = static_cast<int32_t>(own.size())};
    return args;
  }
};

// 1 to 3 slots an expert, in an order at random; a quota is a random part of what is left of the
// expert's choices. One expert in 16 has quotas for all choices but one.
template <class ExpertId>
QuotaRouteCase<ExpertId> MakeQuotaRouteCase(const CountShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  QuotaRouteCase<ExpertId> c{.choices = MakeCountCase<ExpertId>(shape, seed), .first_slot = {0}};
  for (int32_t expert = 0; expert < shape.num_experts; ++expert) {
    const auto replicas = static_cast<int32_t>(1 + random() % 3);
    c.first_slot.push_back(c.first_slot.back() + replicas);
  }
  c.replica_slot.resize(static_cast<size_t>(c.first_slot.back()));
  c.own.resize(c.replica_slot.size());
  for (size_t i = 0; i < c.replica_slot.size(); ++i) {
    c.replica_slot[i] = static_cast<int32_t>(i);
    std::swap(c.replica_slot[i], c.replica_slot[random() % (i + 1)]);
  }
  // Each expert's choices, one slot for each in their order.
  std::vector<std::vector<int32_t>> slots_of(static_cast<size_t>(shape.num_experts));
  for (size_t expert = 0; expert < slots_of.size(); ++expert) {
    int64_t left = c.choices.counts[expert];
    if (left > 0 && random() % 16 == 0) --left;
    for (int32_t i = c.first_slot[expert]; i < c.first_slot[expert + 1]; ++i) {
      const bool is_last = i + 1 == c.first_slot[expert + 1];
      const int64_t quota =
          is_last ? left : static_cast<int64_t>(random() % static_cast<uint64_t>(left + 1));
      const int32_t slot = c.replica_slot[static_cast<size_t>(i)];
      c.own[static_cast<size_t>(slot)] = quota;
      slots_of[expert].insert(slots_of[expert].end(), static_cast<size_t>(quota), slot);
      left -= quota;
    }
  }
  std::vector<size_t> next(slots_of.size());
  for (size_t index = 0; index < c.choices.ids.size(); ++index) {
    const size_t token = index / static_cast<size_t>(shape.top_k);
    const ExpertId id = c.choices.ids[index];
    c.slots.push_back(static_cast<ExpertId>(kNoSlot));
    const bool is_padding = shape.masked && c.choices.is_padding[token] != 0;
    if (is_padding || id < 0 || id >= static_cast<ExpertId>(shape.num_experts)) continue;
    const auto expert = static_cast<size_t>(id);
    if (next[expert] == slots_of[expert].size()) {
      ++c.beyond;
    } else {
      c.slots.back() = static_cast<ExpertId>(slots_of[expert][next[expert]++]);
    }
  }
  return c;
}

}  // namespace eplb::cuda::testing
