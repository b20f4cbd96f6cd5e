// The body of the routing: the slots that router choices go to, and the counters they add to.
// No barrier, no atomic: the caller adds.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/aligned_access.h"
#include "cuda/kernels/count_body.h"

namespace eplb::cuda {

// Slots to which one GPU sends the tokens of one layer; HostRouteTable has the values. The
// addresses are fixed, because a captured graph goes on reading them while a commit overwrites the
// contents. The experts' lists follow each other, because together they have no more entries than
// there are slots. A column for each slot that one expert could get would be 1024 * 1025 entries
// for a layer with 2048 slots.
struct RouteTable {
  const int32_t* candidates = nullptr;  // [num_slots], expert after expert
  // [num_experts + 1]: expert e has candidates[first_candidate[e]] .. [first_candidate[e + 1] - 1].
  const int32_t* first_candidate = nullptr;
  // [num_slots]: 2^32 times the share of this candidate and those of its expert before it. Null,
  // which is faster: a candidate is as good as another.
  const uint32_t* thresholds = nullptr;
  int32_t num_slots = 0;
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

// Returns a token's part of its draws.
EPLB_HOST_DEVICE inline uint32_t DrawKey(int64_t token) {
  const auto high = static_cast<uint32_t>(static_cast<uint64_t>(token) >> 32);
  return (static_cast<uint32_t>(token) + high * 0x85ebca6b) * 0x9e3779b9;
}

// Returns 32 bits for a token and an expert, evenly spread and always the same. There is no state,
// so a captured graph and a repeated forward pass route as the first did. source: Wellons 2018,
// "Prospecting for hash functions", its 32-bit mixer of least bias without the last step, which
// changes the lower half alone: a draw chooses by its upper bits.
EPLB_HOST_DEVICE inline uint32_t RouteDraw(uint32_t key, int32_t expert) {
  uint32_t x = key + static_cast<uint32_t>(expert) * 0x7feb352d;
  x = (x ^ x >> 16) * 0x21f0aaad;
  return (x ^ x >> 15) * 0xd35a2d97;
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

// Candidates of a bin, by their places in the table.
struct CandidateList {
  int32_t first = 0;
  int32_t count = 0;
};

// Returns the candidate, 0..count-1, that a draw falls to if all have equal shares.
EPLB_HOST_DEVICE inline int32_t EqualCandidate(const CandidateList& list, uint32_t draw) {
  return static_cast<int32_t>(uint64_t{draw} * static_cast<uint32_t>(list.count) >> 32);
}

// The table as it is in memory. A kernel has a copy of its own form, with the same three functions.
// A bin that is no expert has one candidate, kNoSlot.
class TableInMemory {
 public:
  EPLB_HOST_DEVICE explicit TableInMemory(const RouteArgs& args)
      : table_(args.table), num_experts_(args.choices.num_experts) {}

  EPLB_HOST_DEVICE CandidateList ListOf(int32_t bin) const {
    if (bin >= num_experts_) return {table_.num_slots, 1};
    const int32_t first = table_.first_candidate[bin];
    return {first, table_.first_candidate[bin + 1] - first};
  }
  EPLB_HOST_DEVICE int32_t SlotAt(int32_t place) const {
    return place < table_.num_slots ? table_.candidates[place] : kNoSlot;
  }
  EPLB_HOST_DEVICE int32_t CandidateOf(const CandidateList& list, uint32_t draw) const {
    if (table_.thresholds == nullptr) return EqualCandidate(list, draw);
    return CandidateOfDraw(table_.thresholds + list.first, list.count, draw);
  }

 private:
  RouteTable table_;
  int32_t num_experts_;
};

// Returns the slot of a choice that is in `bin`.
template <class Table>
EPLB_HOST_DEVICE inline int32_t SlotOfBin(const Table& table, uint32_t key, int32_t bin) {
  const CandidateList list = table.ListOf(bin);
  return table.SlotAt(list.first + table.CandidateOf(list, RouteDraw(key, bin)));
}

// Writes the slot of choice `index`; returns its bin, which the caller counts.
template <class ExpertId, class Table>
EPLB_HOST_DEVICE inline int32_t RouteChoice(const RouteArgs& args, const TokenDivider& divider,
                                            const Table& table, uint32_t index) {
  const int32_t bin = BinOfChoice<ExpertId>(args.choices, divider, index);
  const uint32_t key = DrawKey(args.first_token + TokenOfChoice(divider, index));
  static_cast<ExpertId*>(args.slots)[index] = SlotOfBin(table, key, bin);
  return bin;
}

struct KeyQuad {
  uint32_t keys[kQuad];
};

EPLB_HOST_DEVICE inline KeyQuad KeysOfQuad(const RouteArgs& args, const TokenDivider& divider,
                                           uint32_t first) {
  const QuadStart start = StartOfQuad(args.choices, divider, first);
  KeyQuad result;
  if (start.next >= kQuad) {  // the quad is of one token
    const uint32_t key = DrawKey(args.first_token + start.token);
    EPLB_UNROLL
    for (uint32_t& each : result.keys) each = key;
  } else {
    const TokenQuad of = TokensOfQuad(args.choices, start);
    EPLB_UNROLL
    for (uint32_t i = 0; i < kQuad; ++i) result.keys[i] = DrawKey(args.first_token + of.tokens[i]);
  }
  return result;
}

// RouteChoice of a quad, whose ids are given.
template <class ExpertId, class Table>
EPLB_HOST_DEVICE inline BinQuad RouteQuad(const RouteArgs& args, const TokenDivider& divider,
                                          const Table& table, uint32_t first,
                                          const IdQuad<ExpertId>& chosen) {
  const KeyQuad of = KeysOfQuad(args, divider, first);
  const BinQuad quad_bins = BinsOfQuad(args.choices, divider, first, chosen);
  IdQuad<ExpertId> routed;
  EPLB_UNROLL
  for (uint32_t i = 0; i < kQuad; ++i) {
    routed.ids[i] = SlotOfBin(table, of.keys[i], quad_bins.bins[i]);
  }
  StoreAligned(static_cast<ExpertId*>(args.slots) + first, routed);
  return quad_bins;
}

}  // namespace eplb::cuda
