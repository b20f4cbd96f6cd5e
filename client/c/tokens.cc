// eplb_count_tokens and eplb_client_route_tokens: the router's choices counted and sent to slots,
// on the GPU or on the host, wherever they lie.
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/c/client_handle.h"
#include "client/c/eplb.h"
#include "client/migration/row_memory.h"
#include "cuda/count.h"
#include "cuda/driver_memory.h"
#include "cuda/route.h"

#ifdef EPLB_WITH_CUDA
#include "cuda/runtime.h"
#endif

namespace eplb::c {
namespace {

absl::Status CheckAtLeast(const char* field, int64_t number, int64_t least) {
  if (number >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("choices.", field, " is ", number, ", expected at least ", least));
}

// errors: InvalidArgument naming the field. Pointers are the next checks' matter.
absl::StatusOr<cuda::CountArgs> ReadChoices(const eplb_choices* pointer) {
  EPLB_ASSIGN_OR_RETURN(const eplb_choices given, ReadStruct("choices", pointer));
  EPLB_RETURN_IF_ERROR(CheckAtLeast("num_tokens", given.num_tokens, 0));
  EPLB_RETURN_IF_ERROR(CheckAtLeast("top_k", given.top_k, 1));
  EPLB_RETURN_IF_ERROR(CheckAtLeast("num_experts", given.num_experts, 1));
  if (given.id_type != EPLB_INT32 && given.id_type != EPLB_INT64) {
    return absl::InvalidArgumentError(
        absl::StrCat("choices.id_type is ", given.id_type, ", expected an eplb_id_type"));
  }
  if (given.reserved != 0) return absl::InvalidArgumentError("choices.reserved is not 0");
  if (given.num_tokens > 0 && given.expert_ids == nullptr) {
    return absl::InvalidArgumentError("choices.expert_ids is NULL");
  }
  int64_t* const counters = given.counters;
  return cuda::CountArgs{
      .expert_ids = given.expert_ids,
      .id_type = static_cast<cuda::ExpertIdType>(given.id_type),
      .is_padding = given.is_padding,
      .num_tokens = given.num_tokens,
      .top_k = given.top_k,
      .num_experts = given.num_experts,
      .counts = counters,
      .out_of_range = counters == nullptr ? nullptr : counters + given.num_experts};
}

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
absl::Status Run(const RowMemory& memory, const Args& args, [[maybe_unused]] void* stream) {
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

absl::Status CountTokens(const eplb_choices* choices, void* stream) {
  EPLB_ASSIGN_OR_RETURN(const cuda::CountArgs args, ReadChoices(choices));
  if (args.num_tokens == 0) return absl::OkStatus();
  if (args.counts == nullptr) return absl::InvalidArgumentError("choices.counters is NULL");
  EPLB_RETURN_IF_ERROR(cuda::CheckCountArgs(args));
  EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemoryOf(args, {}));
  return Run(memory, args, stream);
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
    return absl::FailedPreconditionError("route_tokens came before register_experts");
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

absl::Status RouteTokens(const DeviceTables& tables, int32_t layer, const eplb_choices* choices,
                         int64_t first_token, void* slots, void* stream) {
  cuda::RouteArgs args{.slots = slots, .first_token = first_token};
  EPLB_ASSIGN_OR_RETURN(args.choices, ReadChoices(choices));
  EPLB_RETURN_IF_ERROR(CheckPlace(tables, layer, args.choices.num_experts));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  if (slots == nullptr) return absl::InvalidArgumentError("slots is NULL");
  args.table = {
      .candidates = tables.candidates + int64_t{layer} * tables.num_slots,
      .first_candidate = tables.first_candidate + int64_t{layer} * (tables.num_experts + 1),
      .thresholds = tables.thresholds + int64_t{layer} * tables.num_slots};
  EPLB_RETURN_IF_ERROR(cuda::CheckRouteArgs(args));
  EPLB_RETURN_IF_ERROR(CheckApart(args.choices, slots));
  EPLB_ASSIGN_OR_RETURN(
      const RowMemory memory,
      FindMemoryOf(args.choices, {{"device_tables", tables.candidates}, {"slots", slots}}));
  return Run(memory, args, stream);
}

static_assert(EPLB_INT32 == static_cast<int>(cuda::ExpertIdType::kInt32) &&
              EPLB_INT64 == static_cast<int>(cuda::ExpertIdType::kInt64));

}  // namespace
}  // namespace eplb::c

extern "C" {

int32_t eplb_count_tokens(const eplb_choices* choices, void* stream) noexcept {
  return eplb::c::CatchAll([&] { return eplb::c::CountTokens(choices, stream); });
}

int32_t eplb_client_route_tokens(const eplb_client* client, int32_t layer,
                                 const eplb_choices* choices, int64_t first_token, void* slots,
                                 void* stream) noexcept {
  return eplb::c::ReadOnlyCall(client, "route_tokens", eplb::c::Needs::kConnected, [&] {
    return eplb::c::RouteTokens(client->client.load()->device_tables(), layer, choices, first_token,
                                slots, stream);
  });
}

}  // extern "C"
