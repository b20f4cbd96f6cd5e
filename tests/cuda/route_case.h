// Router output at random, a random layer of replicas, and the slots that routing must give: for
// the host and the device test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/route.h"
#include "tests/cuda/count_case.h"

namespace eplb::cuda::testing {

inline constexpr int64_t kFirstToken = 123'456'789'012;  // above 32 bits

template <class ExpertId>
struct RouteCase {
  CountCase<ExpertId> choices;
  HostRouteTable table;
  std::vector<ExpertId> slots;  // expected
};

enum class Shares { kEqual, kRandom };

// Every expert has a slot, and half as many slots again hold experts at random; the GPU has an
// eighth of the slots.
inline HostRouteTable MakeRandomTable(int32_t num_experts, Shares kind, std::mt19937_64& random) {
  std::vector<int32_t> experts(static_cast<size_t>(num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  const int32_t num_slots = num_experts + (num_experts + 1) / 2;
  while (static_cast<int32_t>(experts.size()) < num_slots) {
    // The smaller of two: some experts have many replicas.
    const auto limit = static_cast<uint64_t>(num_experts);
    experts.push_back(static_cast<int32_t>(std::min(random() % limit, random() % limit)));
  }
  std::shuffle(experts.begin(), experts.end(), random);
  std::vector<double> shares(experts.size());
  for (double& share : shares) {
    share = kind == Shares::kEqual ? 1 : static_cast<double>(random() % 1000) / 100;
  }
  return *MakeRouteTable({.physical_to_logical = experts,
                          .num_experts = num_experts,
                          .first_local_slot = num_slots / 8,
                          .num_local_slots = num_slots / 8,
                          .replica_share = shares});
}

// The definition, without halving: the first candidate whose threshold is above the draw.
inline int32_t ExpectedSlot(const HostRouteTable& table, int64_t token, int32_t expert) {
  const auto index = static_cast<size_t>(expert);
  const auto last = static_cast<size_t>(table.first_candidate[index + 1]) - 1;
  const uint32_t draw = RouteDraw(DrawKey(token), expert);
  auto cell = static_cast<size_t>(table.first_candidate[index]);
  while (cell < last && draw >= table.thresholds[cell]) ++cell;
  return table.candidates[cell];
}

template <class ExpertId>
RouteCase<ExpertId> MakeRouteCase(const CountShape& shape, uint64_t seed,
                                  Shares kind = Shares::kRandom) {
  std::mt19937_64 random(seed);
  RouteCase<ExpertId> result{.choices = MakeCountCase<ExpertId>(shape, seed),
                             .table = MakeRandomTable(shape.num_experts, kind, random)};
  const CountCase<ExpertId>& choices = result.choices;
  for (size_t index = 0; index < choices.ids.size(); ++index) {
    const size_t token = index / static_cast<size_t>(shape.top_k);
    const ExpertId id = choices.ids[index];
    const bool is_routed = !(shape.masked && choices.is_padding[token] != 0) && id >= 0 &&
                           id < static_cast<ExpertId>(shape.num_experts);
    result.slots.push_back(is_routed ? static_cast<ExpertId>(ExpectedSlot(
                                           result.table, kFirstToken + static_cast<int64_t>(token),
                                           static_cast<int32_t>(id)))
                                     : static_cast<ExpertId>(kNoSlot));
  }
  return result;
}

// Args over the case's own ids, mask and table; slots and counters are the caller's.
template <class ExpertId>
RouteArgs ArgsOf(const RouteCase<ExpertId>& c) {
  return {.choices = ArgsOf(c.choices), .table = c.table.View(), .first_token = kFirstToken};
}

}  // namespace eplb::cuda::testing
