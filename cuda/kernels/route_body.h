// The body of the routing: the slots that four router choices go to, and the counters they add to.
// No barrier, no atomic: the caller adds.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/aligned_access.h"
#include "cuda/kernels/checksum_body.h"
#include "cuda/kernels/count_body.h"

namespace eplb::cuda {

// Slots to which one GPU sends the tokens of one layer; HostRouteTable has the values. The
// addresses are fixed, because a captured graph goes on reading them while a commit overwrites the
// contents. The experts' lists follow each other, because together they have no more entries than
// there are slots. A column for each slot that one expert could get would be 1024 * 1025 entries
// for a layer with 2048 slots.
struct RouteTable {
  const int32_t* candidates = nullptr;  // [slots], expert after expert
  // [num_experts + 1]: expert e has candidates[first_candidate[e]] .. [first_candidate[e + 1] - 1].
  const int32_t* first_candidate = nullptr;
  // [slots]: 2^32 times the share of this candidate and those of its expert before it. Null: a
  // candidate is as good as another.
  const uint32_t* thresholds = nullptr;
};
static_assert(std::is_trivially_copyable_v<RouteTable>);

// Pointers are to device memory for LaunchRoute, to host memory for RouteOnHost.
struct RouteArgs {
  // The router's choices. With counts and out_of_range they are also counted; both null: not.
  CountArgs choices;
  RouteTable table;
  // [num_tokens, top_k] of choices.id_type; may be expert_ids itself, else apart from it.
  void* slots = nullptr;
  // The number of token 0 among all that share the replicas: data-parallel ranks and batches that
  // give their tokens different numbers do not all choose the same replica.
  int64_t first_token = 0;
};
static_assert(std::is_trivially_copyable_v<RouteArgs>);

inline constexpr int32_t kNoSlot = -1;

// 32 bits for a token and an expert, evenly spread and always the same: no state, so a captured
// graph and a repeated forward pass route as the first did.
EPLB_HOST_DEVICE inline uint32_t RouteDraw(int64_t token, int32_t expert) {
  const uint64_t expert_bits = Mix64(static_cast<uint64_t>(expert));
  return static_cast<uint32_t>(Mix64(static_cast<uint64_t>(token) ^ expert_bits) >> 32);
}

// The candidate, 0..num_candidates-1, that a draw falls to: the first whose threshold is above it.
// The last threshold is not looked at, it would be 2^32.
EPLB_HOST_DEVICE inline int32_t CandidateOfDraw(const uint32_t* thresholds, int32_t num_candidates,
                                                uint32_t draw) {
  int32_t first = 0;
  int32_t last = num_candidates - 1;
  while (first < last) {
    const int32_t middle = first + (last - first) / 2;
    if (draw < thresholds[middle]) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

// The slot of a choice of `token` that is in `bin`: kNoSlot for padding and for ids out of range.
EPLB_HOST_DEVICE inline int32_t SlotOfBin(const RouteArgs& args, int64_t token, int32_t bin) {
  if (bin == kNoBin || bin == args.choices.num_experts) return kNoSlot;
  const RouteTable& table = args.table;
  const int32_t row = table.first_candidate[bin];
  const int32_t num_candidates = table.first_candidate[bin + 1] - row;
  if (num_candidates == 1) return table.candidates[row];  // a local replica, or the only one
  const uint32_t draw = RouteDraw(args.first_token + token, bin);
  const int32_t candidate =
      table.thresholds != nullptr
          ? CandidateOfDraw(table.thresholds + row, num_candidates, draw)
          : static_cast<int32_t>(uint64_t{draw} * static_cast<uint64_t>(num_candidates) >> 32);
  return table.candidates[row + candidate];
}

// Writes the slots of the choices of `quad`, as BinsOfQuad; returns their bins, which the caller
// counts.
template <class ExpertId>
EPLB_HOST_DEVICE inline BinQuad RouteQuad(const RouteArgs& args, int64_t quad) {
  const int64_t first = quad * kQuad;
  const int64_t left = ChoicesFromQuad(args.choices, quad);
  const TokenQuad of = TokensOfQuad(args.choices, quad);
  const BinQuad quad_bins = BinsOfQuad<ExpertId>(args.choices, quad, of);
  IdQuad<ExpertId> routed;
  for (int32_t i = 0; i < kQuad; ++i) {
    routed.ids[i] = SlotOfBin(args, of.tokens[i], quad_bins.bins[i]);
  }
  auto* slots = static_cast<ExpertId*>(args.slots) + first;
  if (left >= kQuad && IsAligned(slots, alignof(IdQuad<ExpertId>))) {
    StoreAligned(slots, routed);
  } else {
    for (int32_t i = 0; i < kQuad; ++i) {
      if (i < left) slots[i] = routed.ids[i];
    }
  }
  return quad_bins;
}

}  // namespace eplb::cuda
