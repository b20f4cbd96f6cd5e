#include "client/tokens.h"

#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "client/migration/row_memory.h"
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
  // Where nobody can have a GPU all memory is the host's; CUDA takes 0.1 ms to say so each time.
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
  return absl::InvalidArgumentError(
      "slots shares memory with choices.expert_ids, expected the same array or one apart from it");
}

// errors: InvalidArgument naming the argument that does not fit the client's placement.
absl::Status CheckPlace(const DeviceTables& tables, int32_t layer, int32_t num_experts) {
  if (tables.candidates == nullptr) {
    return absl::FailedPreconditionError("route_tokens was called before register_experts");
  }
  if (layer < 0 || layer >= tables.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer is ", layer, ", expected 0..", tables.num_layers - 1));
  }
  if (num_experts != tables.num_experts) {
    return absl::InvalidArgumentError(absl::StrCat("choices.num_experts is ", num_experts,
                                                   ", the client has ", tables.num_experts));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CountTokens(const cuda::CountArgs& choices, void* stream) {
  if (choices.num_tokens == 0) return absl::OkStatus();
  if (choices.counts == nullptr) return absl::InvalidArgumentError("choices.counters is NULL");
  EPLB_RETURN_IF_ERROR(cuda::CheckCountArgs(choices));
  EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemoryOf(choices, {}));
  return WorkThroughTokens(memory, choices, stream);
}

absl::Status RouteTokens(const DeviceTables& tables, const cuda::CountArgs& choices,
                         const TokenSlots& to, void* stream) {
  EPLB_RETURN_IF_ERROR(CheckPlace(tables, to.layer, choices.num_experts));
  if (choices.num_tokens == 0) return absl::OkStatus();
  if (to.slots == nullptr) return absl::InvalidArgumentError("slots is NULL");
  const cuda::RouteArgs args{
      .choices = choices,
      .table = {.candidates = tables.candidates + int64_t{to.layer} * tables.num_slots,
                .first_candidate =
                    tables.first_candidate + int64_t{to.layer} * (tables.num_experts + 1),
                .thresholds = tables.thresholds + int64_t{to.layer} * tables.num_slots},
      .slots = to.slots,
      .first_token = to.first_token};
  EPLB_RETURN_IF_ERROR(cuda::CheckRouteArgs(args));
  EPLB_RETURN_IF_ERROR(CheckApart(choices, to.slots));
  EPLB_ASSIGN_OR_RETURN(
      const RowMemory memory,
      FindMemoryOf(choices, {{"device_tables", tables.candidates}, {"slots", to.slots}}));
  return WorkThroughTokens(memory, args, stream);
}

}  // namespace eplb
