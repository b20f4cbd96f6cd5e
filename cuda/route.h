// Sends router choices to slots: logical expert ids become physical ones, as the serving engines'
// dispatch takes them. Optionally counts tokens per logical expert in the same pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "cuda/count.h"
#include "cuda/kernels/route_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// One layer of a placement as one GPU sees it.
struct RouteLayer {
  std::span<const int32_t> physical_to_logical;  // [slots], a row of the map; -1: slot not in use
  int32_t num_experts = 0;
  int32_t first_local_slot = 0;  // first slot of this GPU
  int32_t num_local_slots = 0;
  // [slots], the part of its expert's tokens that a slot gets; only their ratios count. Empty:
  // equal.
  std::span<const double> replica_share;
};

// The values of a RouteTable, which the caller copies to the table's addresses. Their sizes depend
// on slots and experts alone, so they hold for every placement to come.
struct HostRouteTable {
  std::vector<int32_t> candidates;       // [slots]; kNoSlot behind the last expert's
  std::vector<int32_t> first_candidate;  // [num_experts + 1]
  std::vector<uint32_t> thresholds;      // [slots]; made for equal shares too

  // For RouteOnHost; no longer than this lives.
  RouteTable View() const;
};

// An expert's candidates are its replicas on this GPU if it has any there, else all its replicas,
// by rising slot. A replica with share 0 is none, unless all of its expert's shares are 0: these
// then count as equal. Equal shares give thresholds that choose as none do.
// errors: InvalidArgument, naming slot or expert: id outside -1..num_experts-1, expert without a
// slot, local slots outside the row, shares of another size, negative or not finite. cost: O(slots
// + num_experts).
absl::StatusOr<HostRouteTable> MakeRouteTable(const RouteLayer& layer);

// errors: as CheckChoices; InvalidArgument: a null table, one without slots, or null slots where
// there are tokens; one of the two counters without the other. No pointer is followed.
absl::Status CheckRouteArgs(const RouteArgs& args);

// Returns the bytes of a block's table and histogram, as the kernel packs them. 0 if they are too
// many: then LaunchRoute reads the table in memory.
int32_t PackedTableBytes(int32_t num_experts, int32_t num_slots);

// Writes the slots on the CPU, with the body that the GPU runs; kNoSlot for the choices of padding
// tokens and for ids outside 0..num_experts-1. The choice among replicas depends on nothing but
// first_token + token, the expert and the table: CPU and GPU, any grid and any repetition agree.
// errors: as CheckRouteArgs. cost: O(num_tokens * top_k * log candidates). threads: none; the
// arrays are the caller's.
absl::Status RouteOnHost(const RouteArgs& args);

#ifdef EPLB_WITH_CUDA
// Writes the slots, and adds the counts where there are counters, on the current device, in order
// with `stream`; asynchronous, safe under graph capture, launches nothing for zero tokens. errors:
// as CheckRouteArgs; Internal from CUDA.
absl::Status LaunchRoute(const RouteArgs& args, cudaStream_t stream);

// See LoadCopyKernels in copy.h: before the first launch beside other work, or in a graph capture.
absl::Status LoadRouteKernels();
#endif

}  // namespace eplb::cuda
