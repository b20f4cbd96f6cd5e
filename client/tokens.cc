#include "client/tokens.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/row_memory.h"
#include "cuda/driver_memory.h"
#include "cuda/quota_route.h"

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

absl::Status CheckSplit(const PlacementView& placement, const SplitSlots& to) {
  if (std::ssize(to.own) != placement.num_slots) {
    return InvalidInput("split.own has ", to.own.size(), " quotas, expected ", placement.num_slots);
  }
  if (to.version == placement.version) return absl::OkStatus();
  return FailedPrecondition("the split is of placement version ", to.version,
                            ", the current version is ", placement.version,
                            ": split this batch again");
}

// The slots of each expert of a layer, in the order of replica rank.
struct SlotLists {
  std::vector<int32_t> first_slot = {0};  // [E + 1]
  std::vector<int32_t> replica_slot;      // [first_slot[E]]
};

SlotLists ListsOf(const PlacementView& placement, int32_t layer) {
  const auto num_experts = static_cast<size_t>(placement.num_experts);
  const auto max_replicas = static_cast<size_t>(placement.max_replicas);
  SlotLists lists;
  for (size_t row = static_cast<size_t>(layer) * num_experts;
       lists.first_slot.size() <= num_experts; ++row) {
    const auto count = static_cast<size_t>(placement.logical_replica_count[row]);
    const auto slots = placement.logical_to_physical_map.subspan(row * max_replicas, count);
    lists.replica_slot.insert(lists.replica_slot.end(), slots.begin(), slots.end());
    lists.first_slot.push_back(static_cast<int32_t>(lists.replica_slot.size()));
  }
  return lists;
}

// Checks that each expert has as many choices as own quotas. choices: [E] or more.
absl::Status CheckQuotas(const SlotLists& lists, const SplitSlots& to,
                         std::span<const int64_t> choices) {
  for (size_t expert = 0; expert + 1 < lists.first_slot.size(); ++expert) {
    int64_t quotas = 0;
    for (auto i = lists.first_slot[expert]; i < lists.first_slot[expert + 1]; ++i) {
      const int32_t slot = lists.replica_slot[static_cast<size_t>(i)];
      const int64_t quota = to.own[static_cast<size_t>(slot)];
      if (quota < 0) {
        return InvalidInput("split.own[", slot, "] is ", quota, ", expected 0 or more");
      }
      // A larger sum never fits.
      quotas += std::min(quota, 2 * int64_t{cuda::kMostChoices} - quotas);
    }
    if (quotas == choices[expert]) continue;
    return InvalidInput("layer ", to.layer, ": expert ", expert, " has ", choices[expert],
                        " choices of this rank, its own quotas sum to ", quotas,
                        ": the split is of other counts");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ArraysInMemory::Check(const char* name, const void* array) {
  constexpr size_t kMostKnown = 4096;
  if (array == nullptr || known_.contains(array)) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const RowMemory found, FindMemoryOf({}, {{name, array}}));
  if (found.device != memory_.device) {
    return InvalidInput(name, " is in ", found.Text(), ", expected ", memory_.Text(),
                        ", where the tables are");
  }
  if (known_.size() == kMostKnown) known_.clear();
  known_.insert(array);
  return absl::OkStatus();
}

absl::Status CountTokens(const cuda::CountArgs& choices, void* stream) {
  if (choices.num_tokens == 0) return absl::OkStatus();
  if (choices.counts == nullptr) return InvalidInput("choices.counters is NULL");
  EPLB_RETURN_IF_ERROR(cuda::CheckCountArgs(choices));
  EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemoryOf(choices, {}));
  return WorkThroughTokens(memory, choices, stream);
}

absl::Status TurnTokens(const cuda::TurnArgs& turn) {
  EPLB_RETURN_IF_ERROR(cuda::CheckTurnArgs(turn));
  if (turn.slots != nullptr) EPLB_RETURN_IF_ERROR(CheckApart(turn.choices, turn.slots));
  return cuda::TurnOnHost(turn);
}

absl::Status TurnTokensOnGpu([[maybe_unused]] const cuda::TurnArgs& turn,
                             [[maybe_unused]] int32_t device, [[maybe_unused]] void* stream) {
#ifdef EPLB_WITH_CUDA
  EPLB_RETURN_IF_ERROR(cuda::CheckTurnArgs(turn));
  if (turn.slots != nullptr) EPLB_RETURN_IF_ERROR(CheckApart(turn.choices, turn.slots));
  EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(device));
  if (turn.choices.num_tokens == 0) return cuda::LoadTurnKernels();
  return cuda::LaunchTurn(turn, static_cast<cudaStream_t>(stream));
#else
  return FailedPrecondition("this library was built without CUDA");
#endif
}

absl::Status RouteTokens(const DeviceTables& tables, const cuda::CountArgs& choices,
                         const TokenSlots& to, void* stream) {
  if (tables.candidates == nullptr) {
    return FailedPrecondition("route_tokens was called before register_experts");
  }
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
  EPLB_RETURN_IF_ERROR(CheckPlace(placement, to.layer, choices.num_experts));
  EPLB_RETURN_IF_ERROR(CheckSplit(placement, to));
  EPLB_RETURN_IF_ERROR(cuda::CheckChoices(choices));
  if (choices.num_tokens > 0) {
    if (to.slots == nullptr) return InvalidInput("slots is NULL");
    EPLB_RETURN_IF_ERROR(CheckApart(choices, to.slots));
    EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemoryOf(choices, {{"slots", to.slots}}));
    if (memory.device.has_value()) {
      return FailedPrecondition(
          "choices.expert_ids is in ", memory.Text(),
          ", route_split takes host memory; count_for and route_from split on a GPU");
    }
  }
  std::vector<int64_t> counts(static_cast<size_t>(choices.num_experts) + 1);
  cuda::CountArgs counted = choices;
  counted.counts = counts.data();
  counted.out_of_range = &counts.back();
  EPLB_RETURN_IF_ERROR(cuda::CountOnHost(counted));
  const SlotLists lists = ListsOf(placement, to.layer);
  EPLB_RETURN_IF_ERROR(CheckQuotas(lists, to, counts));
  int64_t beyond = 0;  // stays 0, as the quotas are as many as the choices
  EPLB_RETURN_IF_ERROR(cuda::QuotaRouteOnHost({.choices = choices,
                                               .first_slot = lists.first_slot.data(),
                                               .replica_slot = lists.replica_slot.data(),
                                               .own = to.own.data(),
                                               .num_slots = placement.num_slots,
                                               .slots = to.slots,
                                               .beyond = &beyond}));
  if (choices.counts == nullptr) return absl::OkStatus();
  for (size_t expert = 0; expert + 1 < counts.size(); ++expert) {
    choices.counts[expert] += counts[expert];
  }
  *choices.out_of_range += counts.back();
  return absl::OkStatus();
}

}  // namespace eplb
