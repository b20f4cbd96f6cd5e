// The router's choices counted and sent to slots: on the GPU or on the host, wherever they lie.
// eplb.h (eplb_count_tokens, eplb_turn_tokens, eplb_client_route_tokens, eplb_client_route_split)
// describes each array. threads: any; the arrays are the caller's.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"

#include "base/errors.h"
#include "client/client.h"
#include "client/rows/row_memory.h"
#include "cuda/route.h"
#include "cuda/turn.h"

namespace eplb {

// Slots may be the ids themselves: each choice is read before its slot is written.
inline absl::Status CheckApart(const cuda::CountArgs& choices, const void* slots) {
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

// tables: DeviceTables or PlacementView. errors: InvalidArgument naming the argument that does not
// fit the client's placement.
template <class Tables>
absl::Status CheckPlace(const Tables& tables, int32_t layer, int32_t num_experts) {
  if (layer < 0 || layer >= tables.num_layers) {
    return InvalidInput("layer is ", layer, ", expected 0..", tables.num_layers - 1);
  }
  if (num_experts == tables.num_experts) return absl::OkStatus();
  return InvalidInput("choices.num_experts is ", num_experts, ", the client has ",
                      tables.num_experts);
}

// Adds to `choices.counts` and `choices.out_of_range`. stream: a cudaStream_t for arrays on a GPU,
// where the call only launches. errors: InvalidArgument naming the field, also for arrays in two
// memories; FailedPrecondition for memory of a GPU that this process cannot use. cost: num_tokens *
// top_k.
absl::Status CountTokens(const cuda::CountArgs& choices, void* stream);

// Writes the slot of each choice by a table of the caller, and counts the choices if there are
// counters, in one pass over host memory that allocates nothing. Without a table and slots it
// counts alone. errors: InvalidArgument naming the field; nothing is written then. cost: num_tokens
// * top_k.
absl::Status TurnTokens(const cuda::TurnArgs& turn);

// TurnTokens for arrays on a GPU, in order with `stream`, where the call only launches. A call
// with zero tokens loads the kernels onto the device instead; see LoadCopyKernels in cuda/copy.h.
// errors: as TurnTokens; FailedPrecondition or Internal if this
// process cannot use the device. No pointer is followed.
absl::Status TurnTokensOnGpu(const cuda::TurnArgs& turn, int32_t device, void* stream);

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

// Remembers arrays in the memory of the tables for kernels, so that a call on the same arrays asks
// no driver. threads: one at a time.
class ArraysInMemory {
 public:
  explicit ArraysInMemory(RowMemory memory) : memory_(std::move(memory)) {}
  const RowMemory& memory() const { return memory_; }
  // name: of the argument; array: null: not given. errors: InvalidArgument for another memory;
  // FailedPrecondition for memory of a GPU that this process cannot use.
  absl::Status Check(const char* name, const void* array);
  void Forget() { known_.clear(); }

 private:
  RowMemory memory_;
  std::unordered_set<const void*> known_;
};

}  // namespace eplb
