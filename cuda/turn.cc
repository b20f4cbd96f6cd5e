#include "cuda/turn.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/count.h"

namespace eplb::cuda {
namespace {

// By value: the compiler then keeps the fields in registers, although the loop writes memory.
template <class ExpertId, class Add>
void TurnEach(const TurnArgs args, const Add add) {
  const TokenDivider divider = MakeTokenDivider(args.choices.top_k);
  for (uint32_t index = 0; index < NumChoices(args.choices); ++index) {
    TurnChoice<ExpertId>(args, divider, index, add);
  }
}

template <class ExpertId>
void TurnAll(const TurnArgs& args) {
  if (!Counts(args)) return TurnEach<ExpertId>(args, [](int32_t) {});
  TurnEach<ExpertId>(args, [counts = args.choices.counts](int32_t bin) { ++counts[bin]; });
}

}  // namespace

absl::Status CheckTurnArgs(const TurnArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckChoices(args.choices));
  const bool counts = args.choices.counts != nullptr;
  if (args.slot_of_expert == nullptr && (args.slots != nullptr || !counts)) {
    return InvalidInput("slot_of_expert is NULL");
  }
  if (args.choices.num_tokens > 0 && args.slot_of_expert != nullptr && args.slots == nullptr) {
    return InvalidInput("slots is NULL");
  }
  return absl::OkStatus();
}

absl::Status TurnOnHost(const TurnArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckTurnArgs(args));
  if (args.choices.id_type == ExpertIdType::kInt64) {
    TurnAll<int64_t>(args);
  } else {
    TurnAll<int32_t>(args);
  }
  return absl::OkStatus();
}

}  // namespace eplb::cuda
