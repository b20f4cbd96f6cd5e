// The body of turning a router's choices into slots by a table of the caller. Beside route_body.h,
// which draws among the replicas of an expert.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "cuda/kernels/count_body.h"

namespace eplb::cuda {

// Pointers are to device memory for LaunchTurn, to host memory for TurnOnHost.
struct TurnArgs {
  // With counters they are counted, too; out_of_range is counts + num_experts.
  CountArgs choices;
  // [num_experts + 1], slot of each expert; the last entry is written for padding. Null: choices
  // are counted alone.
  const int64_t* slot_of_expert = nullptr;
  // [num_tokens, top_k] of choices.id_type; may be expert_ids itself, else apart from it.
  void* slots = nullptr;
  const int64_t* weight = nullptr;  // [1], 0: nothing is counted; null: it is
};
static_assert(std::is_trivially_copyable_v<TurnArgs>);

EPLB_HOST_DEVICE inline bool Counts(const TurnArgs& args) {
  return args.choices.counts != nullptr && (args.weight == nullptr || *args.weight != 0);
}

// Writes the slot of choice `index`, and calls `add` with its bin unless it is padding's. An id out
// of range stays, because it may be a router's mark of no expert.
template <class ExpertId, class Add>
EPLB_HOST_DEVICE inline void TurnChoice(const TurnArgs& args, const TokenDivider& divider,
                                        uint32_t index, const Add& add) {
  const CountArgs& choices = args.choices;
  const ExpertId id = static_cast<const ExpertId*>(choices.expert_ids)[index];
  const bool is_padding =
      choices.is_padding != nullptr && choices.is_padding[TokenOfChoice(divider, index)] != 0;
  const int32_t bin = is_padding ? OutOfRangeBin(choices) : BinOfId(choices, id);
  if (!is_padding) add(bin);
  if (args.slots == nullptr) return;
  const bool stays = bin == OutOfRangeBin(choices) && !is_padding;
  static_cast<ExpertId*>(args.slots)[index] =
      stays ? id : static_cast<ExpertId>(args.slot_of_expert[bin]);
}

}  // namespace eplb::cuda
