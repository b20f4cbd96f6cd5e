// One pass over a router's choices in host memory: each choice is counted for its expert and
// written as the slot of that expert. The table of slots is the caller's; no client is needed.
#ifndef EPLB_CLIENT_TURNS_H_
#define EPLB_CLIENT_TURNS_H_

#include <cstdint>

#include "absl/status/status.h"

#include "cuda/count.h"

namespace eplb {

// Writes the slot of each choice, and counts the choices if there are counters.
// slot_of_expert: [num_experts + 1]; the last entry is written for padding. Ids that are not in
// 0..num_experts-1 stay, because they may be a router's mark of no expert. slots: [num_tokens,
// top_k] of the ids' type; may be the ids themselves. choices.counts: [num_experts + 1], the last
// for ids out of range. errors: InvalidArgument naming the field; nothing is written then. cost:
// num_tokens * top_k. Threads: any; allocates nothing.
absl::Status TurnTokens(const cuda::CountArgs& choices, const int64_t* slot_of_expert, void* slots);

// Mask of a router: one byte for each expert of each token or place.
struct MaskArgs {
  const uint8_t* chosen = nullptr;  // [outer, num_experts, inner]; not 0: a choice
  int64_t* counts = nullptr;        // [num_experts]; null: nothing is counted
  int64_t outer = 0;
  int64_t inner = 0;
  int32_t num_experts = 0;
};

// Writes the mask with slots in the place of experts, and adds each expert's choices to its count.
// slot_of_expert: [num_experts], a permutation. turned: as `chosen`, apart from it. errors,
// Threads: see TurnTokens. cost: the bytes of the mask.
absl::Status TurnMask(const MaskArgs& mask, const int64_t* slot_of_expert, uint8_t* turned);

}  // namespace eplb

#endif  // EPLB_CLIENT_TURNS_H_
