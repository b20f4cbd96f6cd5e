// The router's choices counted and sent to slots: on the GPU or on the host, wherever they lie.
// eplb.h (eplb_count_tokens, eplb_turn_tokens, eplb_client_route_tokens, eplb_client_route_split)
// describes each array. threads: any; the arrays are the caller's.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "client/client.h"
#include "cuda/route.h"

namespace eplb {

// Adds to `choices.counts` and `choices.out_of_range`. stream: a cudaStream_t for arrays on a GPU,
// where the call only launches. errors: InvalidArgument naming the field, also for arrays in two
// memories; FailedPrecondition for memory of a GPU that this process cannot use. cost: num_tokens *
// top_k.
absl::Status CountTokens(const cuda::CountArgs& choices, void* stream);

// Writes the slot of each choice by a table of the caller, and counts the choices if there are
// counters, in one pass over host memory that allocates nothing. slot_of_expert: [num_experts + 1];
// the last entry is written for padding. Ids out of range stay, because they may be a router's mark
// of no expert. choices.counts: [num_experts + 1]. slots: [num_tokens, top_k] of the ids' type; may
// be the ids themselves. Without a table and slots it counts alone. errors: InvalidArgument naming
// the field; nothing is written then. cost: num_tokens * top_k.
absl::Status TurnTokens(const cuda::CountArgs& choices, const int64_t* slot_of_expert, void* slots);

// Source and target of the slots of a call.
struct TokenSlots {
  int32_t layer = 0;
  int64_t first_token = 0;  // the number of token 0
  void* slots = nullptr;  // [num_tokens, top_k], slots of the ids' type; may be the ids themselves
};

// Writes the slot of each choice by the tables of a layer, and counts where there are counters.
// errors: as CountTokens; InvalidArgument for a layer or num_experts that `tables` has not;
// FailedPrecondition for empty tables.
absl::Status RouteTokens(const DeviceTables& tables, const cuda::CountArgs& choices,
                         const TokenSlots& to, void* stream);

// Source of the slots of a rank's choices, by its own quotas of a split (Client::Split).
struct SplitSlots {
  int32_t layer = 0;
  int64_t version = 0;           // version of the placement that was split
  std::span<const int64_t> own;  // [S]
  void* slots = nullptr;  // [num_tokens, top_k], slots of the ids' type; may be the ids themselves
};

// Writes the slot of each choice: an expert's choices, in the order of their index, fill its slots
// in the order of replica rank, each up to its own quota; -1 for padding and for ids out of range.
// Counts where there are counters. Host memory alone. Nothing is written on an error.
// errors: as CountTokens; InvalidArgument for a layer, num_experts or number of quotas that the
// placement has not, and naming the expert whose choices are not as many as its own quotas;
// FailedPrecondition for a split of another version, and for arrays in memory of a GPU.
// cost: 2 * num_tokens * top_k + S. Threads: as RouteTokens.
absl::Status RouteBySplit(const PlacementView& placement, const cuda::CountArgs& choices,
                          const SplitSlots& to);

}  // namespace eplb
