// eplb_client_reduce_gradients, eplb_client_broadcast_weights and eplb_client_expert_squares.
#include <algorithm>
#include <string>
#include <vector>

#include "base/errors.h"
#include "client/c/client_handle.h"
#include "client/c/eplb.h"
#include "client/c/structs.h"
#include "client/client.h"

using eplb::Client;
using eplb::c::Act;

namespace eplb::c {
namespace {

absl::StatusOr<std::vector<ReplicaRows>> ReadRows(const eplb_replica_rows* rows, size_t num_rows) {
  return ReadArray<ReplicaRows>(
      "rows", rows, num_rows,
      [](const std::string& name, const eplb_replica_rows& known) -> absl::StatusOr<ReplicaRows> {
        if (known.type < EPLB_FLOAT32 || known.type > EPLB_FLOAT16) {
          return InvalidInput(name, ".type is ", known.type, ", expected an eplb_gradient_type");
        }
        if (known.reserved != 0) return InvalidInput(name, ".reserved is not 0");
        return ReplicaRows{.name = known.name == nullptr ? name : std::string(known.name),
                           .layer = known.layer,
                           .type = static_cast<GradientType>(known.type),
                           .base = known.base,
                           .num_rows = known.num_rows,
                           .row_bytes = known.row_bytes,
                           .row_stride = known.row_stride};
      });
}

static_assert(static_cast<int32_t>(GradientType::kFloat32) == EPLB_FLOAT32 &&
              static_cast<int32_t>(GradientType::kFloat64) == EPLB_FLOAT64 &&
              static_cast<int32_t>(GradientType::kBfloat16) == EPLB_BFLOAT16 &&
              static_cast<int32_t>(GradientType::kFloat16) == EPLB_FLOAT16);

}  // namespace
}  // namespace eplb::c

extern "C" {

int32_t eplb_client_reduce_gradients(eplb_client* client, const eplb_replica_rows* rows,
                                     size_t num_rows, void* stream) noexcept {
  return Act(client, "reduce_gradients", [&](Client& connected) -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const std::vector<eplb::ReplicaRows> views,
                          eplb::c::ReadRows(rows, num_rows));
    return connected.ReduceGradients(views, stream);
  });
}

int32_t eplb_client_broadcast_weights(eplb_client* client, const eplb_replica_rows* rows,
                                      size_t num_rows, void* stream) noexcept {
  return Act(client, "broadcast_weights", [&](Client& connected) -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const std::vector<eplb::ReplicaRows> views,
                          eplb::c::ReadRows(rows, num_rows));
    return connected.BroadcastWeights(views, stream);
  });
}

int32_t eplb_client_expert_squares(eplb_client* client, const eplb_replica_rows* rows,
                                   size_t num_rows, void* stream, double* squares,
                                   size_t num_squares) noexcept {
  // A call that fails, or one in a forked child, leaves nothing unwritten.
  if (squares != nullptr) std::fill_n(squares, num_squares, 0.0);
  return Act(client, "expert_squares", [&](Client& connected) -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const std::vector<eplb::ReplicaRows> views,
                          eplb::c::ReadRows(rows, num_rows));
    const eplb::PlacementView& view = connected.placement();
    const auto expected =
        static_cast<size_t>(view.num_layers) * static_cast<size_t>(view.num_experts);
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("squares", squares));
    if (num_squares != expected) {
      return InvalidInput("num_squares is ", num_squares, ", expected ", expected,
                          ", num_layers * num_experts");
    }
    EPLB_ASSIGN_OR_RETURN(const std::vector<double> sums, connected.ExpertSquares(views, stream));
    std::copy(sums.begin(), sums.end(), squares);
    return absl::OkStatus();
  });
}

}  // extern "C"
