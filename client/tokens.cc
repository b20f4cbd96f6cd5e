#include "client/tokens.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/row_memory.h"
#include "cuda/driver_memory.h"

#ifdef EPLB_WITH_CUDA
#include "cuda/runtime.h"
#endif

namespace eplb {
namespace {

// One array of a call, for FindMemory: its first byte says where it lies.
struct Array {
  const char* name;
  const void* base;  // null: it is not there
};

absl::StatusOr<RowMemory> FindMemoryOf(const cuda::CountArgs& choices, std::vector<Array> arrays) {
  arrays.push_back({"choices.expert_ids", choices.expert_ids});
  arrays.push_back({"choices.is_padding", choices.is_padding});
  arrays.push_back({"choices.counters", choices.counts});
  // If no process can have a GPU, all memory is the host's; CUDA takes 0.1 ms to report it each
  // time.
  static const bool is_host_alone = [] {
    const absl::StatusOr<RowMemory> in_use = MemoryInUse();
    return in_use.ok() && !in_use->no_device.empty() && !cuda::DriverIsInstalled();
  }();
  if (is_host_alone) return RowMemory{};
  std::vector<ExpertTensor> tensors;
  for (const Array& array : arrays) {
    if (array.base == nullptr) continue;
    tensors.push_back({.name = array.name, .base = const_cast<void*>(array.base)});
  }
  return FindMemory(tensors);
}

// Args: cuda::CountArgs or cuda::RouteArgs.
template <class Args>
absl::Status WorkThroughTokens([[maybe_unused]] const RowMemory& memory, const Args& args,
                               [[maybe_unused]] void* stream) {
  constexpr bool kRoutes = std::is_same_v<Args, cuda::RouteArgs>;
#ifdef EPLB_WITH_CUDA
  if (memory.device.has_value()) {
    EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(*memory.device));
    auto* const order = static_cast<cudaStream_t>(stream);
    if constexpr (kRoutes) {
      return cuda::LaunchRoute(args, order);
    } else {
      return cuda::LaunchCount(args, order);
    }
  }
#endif
  if constexpr (kRoutes) {
    return cuda::RouteOnHost(args);
  } else {
    return cuda::CountOnHost(args);
  }
}

// Slots may be the ids themselves: each choice is read before its slot is written.
absl::Status CheckApart(const cuda::CountArgs& choices, const void* slots) {
  const auto ids = reinterpret_cast<uintptr_t>(choices.expert_ids);
  const auto written = reinterpret_cast<uintptr_t>(slots);
  const uintptr_t id_bytes = choices.id_type == cuda::ExpertIdType::kInt64 ? 8 : 4;
  const uintptr_t num_bytes = static_cast<uintptr_t>(choices.num_tokens * choices.top_k) * id_bytes;
  if (ids == written || ids + num_bytes <= written || written + num_bytes <= ids) {
    return absl::OkStatus();
  }
  return InvalidInput(
      "slots shares memory with choices.expert_ids, expected the same array or one apart from it");
}

// errors: InvalidArgument naming the argument that does not fit the client's placement.
absl::Status CheckPlace(const DeviceTables& tables, int32_t layer, int32_t num_experts) {
  if (tables.candidates == nullptr) {
    return FailedPrecondition("route_tokens was called before register_experts");
  }
  if (layer < 0 || layer >= tables.num_layers) {
    return InvalidInput("layer is ", layer, ", expected 0..", tables.num_layers - 1);
  }
  if (num_experts != tables.num_experts) {
    return InvalidInput("choices.num_experts is ", num_experts, ", the client has ",
                        tables.num_experts);
  }
  return absl::OkStatus();
}

// errors: as CheckPlace, for a split.
absl::Status CheckSplit(const PlacementView& placement, int32_t num_experts, const SplitSlots& to) {
  if (to.layer < 0 || to.layer >= placement.num_layers) {
    return InvalidInput("layer is ", to.layer, ", expected 0..", placement.num_layers - 1);
  }
  if (num_experts != placement.num_experts) {
    return InvalidInput("choices.num_experts is ", num_experts, ", the client has ",
                        placement.num_experts);
  }
  if (std::ssize(to.own) != placement.num_slots) {
    return InvalidInput("split.own has ", to.own.size(), " quotas, expected ", placement.num_slots);
  }
  if (to.version == placement.version) return absl::OkStatus();
  return FailedPrecondition("the split is of placement version ", to.version, ", version ",
                            placement.version, " is in force: split this batch again");
}

constexpr int64_t kMostChoices = int64_t{1} << 32;  // more than a call can have

// A rank's own quotas of one layer, while its choices fill the slots.
class QuotaFill {
 public:
  QuotaFill(const PlacementView& placement, const SplitSlots& to)
      : num_experts_(static_cast<size_t>(placement.num_experts)),
        max_replicas_(static_cast<size_t>(placement.max_replicas)),
        layer_(to.layer),
        left_(to.own.begin(), to.own.end()),
        next_(num_experts_) {
    const size_t row = static_cast<size_t>(to.layer) * num_experts_;
    counts_ = placement.logical_replica_count.subspan(row, num_experts_);
    slots_ = placement.logical_to_physical_map.subspan(row * max_replicas_,
                                                       num_experts_ * max_replicas_);
  }

  // Checks that each expert has as many choices as own quotas. choices: [E].
  absl::Status Check(std::span<const int64_t> choices) const {
    for (size_t expert = 0; expert < num_experts_; ++expert) {
      int64_t quotas = 0;
      for (size_t replica = 0; replica < static_cast<size_t>(counts_[expert]); ++replica) {
        const int64_t quota = left_[SlotOf(expert, replica)];
        if (quota < 0) {
          return InvalidInput("split.own[", SlotOf(expert, replica), "] is ", quota,
                              ", expected 0 or more");
        }
        quotas += std::min(quota, kMostChoices - quotas);  // a larger quota never fits
      }
      if (quotas != choices[expert]) return Wrong(expert, choices[expert], quotas);
    }
    return absl::OkStatus();
  }

  // REQUIRES: Check, and an expert's choices are not more than that.
  int32_t Take(size_t expert) {
    size_t slot = SlotOf(expert, next_[expert]);
    while (left_[slot] == 0) slot = SlotOf(expert, ++next_[expert]);
    --left_[slot];
    return static_cast<int32_t>(slot);
  }

 private:
  size_t SlotOf(size_t expert, size_t replica) const {
    return static_cast<size_t>(slots_[expert * max_replicas_ + replica]);
  }
  absl::Status Wrong(size_t expert, int64_t choices, int64_t quotas) const {
    return InvalidInput("layer ", layer_, ": expert ", expert, " has ", choices,
                        " choices of this rank, its own quotas sum to ", quotas,
                        ": the split is of other counts");
  }

  const size_t num_experts_;
  const size_t max_replicas_;
  const int32_t layer_;
  std::span<const int32_t> counts_;  // [E], replicas
  std::span<const int32_t> slots_;   // [E, max_replicas]
  std::vector<int64_t> left_;        // [S]
  std::vector<size_t> next_;         // [E], the replica that the next choice looks at
};

// By value: the compiler then keeps the fields in registers, although the loop writes memory.
template <class ExpertId>
void TurnAll(const cuda::CountArgs choices, const int64_t* slot_of_expert, void* slots) {
  const auto* const ids = static_cast<const ExpertId*>(choices.expert_ids);
  auto* const written = static_cast<ExpertId*>(slots);
  const auto num_experts = static_cast<uint64_t>(choices.num_experts);
  const cuda::TokenDivider divider = cuda::MakeTokenDivider(choices.top_k);
  for (uint32_t i = 0; i < cuda::NumChoices(choices); ++i) {
    const ExpertId id = ids[i];
    if (choices.is_padding != nullptr && choices.is_padding[cuda::TokenOfChoice(divider, i)] != 0) {
      written[i] = static_cast<ExpertId>(slot_of_expert[num_experts]);
      continue;
    }
    const uint64_t bin = std::min(static_cast<uint64_t>(int64_t{id}), num_experts);
    if (choices.counts != nullptr) ++choices.counts[bin];
    written[i] = bin < num_experts ? static_cast<ExpertId>(slot_of_expert[bin]) : id;
  }
}

template <class ExpertId>
void CountAll(const cuda::CountArgs choices) {
  const auto* const ids = static_cast<const ExpertId*>(choices.expert_ids);
  const auto num_experts = static_cast<uint64_t>(choices.num_experts);
  const cuda::TokenDivider divider = cuda::MakeTokenDivider(choices.top_k);
  for (uint32_t i = 0; i < cuda::NumChoices(choices); ++i) {
    if (choices.is_padding != nullptr && choices.is_padding[cuda::TokenOfChoice(divider, i)] != 0) {
      continue;
    }
    ++choices.counts[std::min(static_cast<uint64_t>(int64_t{ids[i]}), num_experts)];
  }
}

// The choices in order; each is read before its slot is written.
template <class ExpertId>
void FillSlots(const cuda::CountArgs& choices, QuotaFill& fill, void* slots) {
  const auto* ids = static_cast<const ExpertId*>(choices.expert_ids);
  auto* written = static_cast<ExpertId*>(slots);
  const cuda::TokenDivider divider = cuda::MakeTokenDivider(choices.top_k);
  for (uint32_t i = 0; i < cuda::NumChoices(choices); ++i) {
    const int32_t bin = cuda::BinOfChoice(choices, divider, i, ids[i]);
    const bool is_expert = bin < choices.num_experts;
    written[i] = is_expert ? fill.Take(static_cast<size_t>(bin)) : cuda::kNoSlot;
  }
}

}  // namespace

absl::Status CountTokens(const cuda::CountArgs& choices, void* stream) {
  if (choices.num_tokens == 0) return absl::OkStatus();
  if (choices.counts == nullptr) return InvalidInput("choices.counters is NULL");
  EPLB_RETURN_IF_ERROR(cuda::CheckCountArgs(choices));
  EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemoryOf(choices, {}));
  return WorkThroughTokens(memory, choices, stream);
}

absl::Status TurnTokens(const cuda::CountArgs& choices, const int64_t* slot_of_expert,
                        void* slots) {
  EPLB_RETURN_IF_ERROR(cuda::CheckChoices(choices));
  const bool is_int64 = choices.id_type == cuda::ExpertIdType::kInt64;
  if (slot_of_expert == nullptr && slots == nullptr && choices.counts != nullptr) {
    is_int64 ? CountAll<int64_t>(choices) : CountAll<int32_t>(choices);
    return absl::OkStatus();
  }
  if (slot_of_expert == nullptr) return InvalidInput("slot_of_expert is NULL");
  if (choices.num_tokens == 0) return absl::OkStatus();
  if (slots == nullptr) return InvalidInput("slots is NULL");
  EPLB_RETURN_IF_ERROR(CheckApart(choices, slots));
  if (is_int64) {
    TurnAll<int64_t>(choices, slot_of_expert, slots);
  } else {
    TurnAll<int32_t>(choices, slot_of_expert, slots);
  }
  return absl::OkStatus();
}

absl::Status RouteTokens(const DeviceTables& tables, const cuda::CountArgs& choices,
                         const TokenSlots& to, void* stream) {
  EPLB_RETURN_IF_ERROR(CheckPlace(tables, to.layer, choices.num_experts));
  if (choices.num_tokens == 0) return absl::OkStatus();
  if (to.slots == nullptr) return InvalidInput("slots is NULL");
  const cuda::RouteArgs args{
      .choices = choices,
      .table = {.candidates = tables.candidates + int64_t{to.layer} * tables.num_slots,
                .first_candidate =
                    tables.first_candidate + int64_t{to.layer} * (tables.num_experts + 1),
                .num_slots = tables.num_slots},
      .slots = to.slots,
      .first_token = to.first_token};
  EPLB_RETURN_IF_ERROR(cuda::CheckRouteArgs(args));
  EPLB_RETURN_IF_ERROR(CheckApart(choices, to.slots));
  EPLB_ASSIGN_OR_RETURN(
      const RowMemory memory,
      FindMemoryOf(choices, {{"device_tables", tables.candidates}, {"slots", to.slots}}));
  return WorkThroughTokens(memory, args, stream);
}

absl::Status RouteBySplit(const PlacementView& placement, const cuda::CountArgs& choices,
                          const SplitSlots& to) {
  EPLB_RETURN_IF_ERROR(CheckSplit(placement, choices.num_experts, to));
  EPLB_RETURN_IF_ERROR(cuda::CheckChoices(choices));
  if (choices.num_tokens > 0) {
    if (to.slots == nullptr) return InvalidInput("slots is NULL");
    EPLB_RETURN_IF_ERROR(CheckApart(choices, to.slots));
    EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemoryOf(choices, {{"slots", to.slots}}));
    if (memory.device.has_value()) {
      return FailedPrecondition("choices.expert_ids lies in ", memory.Text(),
                                ", a split routes in host memory");
    }
  }
  std::vector<int64_t> counts(static_cast<size_t>(choices.num_experts) + 1);
  cuda::CountArgs counted = choices;
  counted.counts = counts.data();
  counted.out_of_range = &counts.back();
  EPLB_RETURN_IF_ERROR(cuda::CountOnHost(counted));
  QuotaFill fill(placement, to);
  EPLB_RETURN_IF_ERROR(fill.Check(std::span(counts).first(counts.size() - 1)));
  if (choices.id_type == cuda::ExpertIdType::kInt64) {
    FillSlots<int64_t>(choices, fill, to.slots);
  } else {
    FillSlots<int32_t>(choices, fill, to.slots);
  }
  if (choices.counts == nullptr) return absl::OkStatus();
  for (size_t expert = 0; expert + 1 < counts.size(); ++expert) {
    choices.counts[expert] += counts[expert];
  }
  *choices.out_of_range += counts.back();
  return absl::OkStatus();
}

}  // namespace eplb
