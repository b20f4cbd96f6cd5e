#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/c/client_handle.h"
#include "client/c/eplb.h"
#include "client/client.h"

using eplb::c::CallOnTrainingThread;
using eplb::c::Needs;

namespace eplb::c {
namespace {

absl::StatusOr<std::vector<ReplicaRows>> ReadRows(const eplb_replica_rows* rows, size_t num_rows) {
  std::vector<ReplicaRows> views;
  if (num_rows == 0) return views;
  if (rows == nullptr) return absl::InvalidArgumentError("rows is NULL");
  const size_t size = rows->struct_size;
  for (size_t i = 0; i < num_rows; ++i) {
    const std::string name = absl::StrCat("rows[", i, "]");
    // The caller's array has the caller's distance between structs.
    const auto* given = reinterpret_cast<const eplb_replica_rows*>(
        reinterpret_cast<const unsigned char*>(rows) + i * size);
    EPLB_ASSIGN_OR_RETURN(const eplb_replica_rows known, ReadStruct(name.c_str(), given));
    if (known.struct_size != size) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".struct_size is ", known.struct_size, ", that of rows[0] is ", size));
    }
    if (known.type < EPLB_FLOAT32 || known.type > EPLB_FLOAT16) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".type is ", known.type, ", expected an eplb_gradient_type"));
    }
    if (known.reserved != 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, ".reserved is not 0"));
    }
    views.push_back({.name = known.name == nullptr ? name : std::string(known.name),
                     .layer = known.layer,
                     .type = static_cast<GradientType>(known.type),
                     .base = known.base,
                     .num_rows = known.num_rows,
                     .row_bytes = known.row_bytes,
                     .row_stride = known.row_stride});
  }
  return views;
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
  return CallOnTrainingThread(client, "reduce_gradients", Needs::kOpen, [&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const std::vector<eplb::ReplicaRows> views,
                          eplb::c::ReadRows(rows, num_rows));
    return client->client.load()->ReduceGradients(views, stream);
  });
}

int32_t eplb_client_broadcast_weights(eplb_client* client, const eplb_replica_rows* rows,
                                      size_t num_rows, void* stream) noexcept {
  return CallOnTrainingThread(client, "broadcast_weights", Needs::kOpen, [&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const std::vector<eplb::ReplicaRows> views,
                          eplb::c::ReadRows(rows, num_rows));
    return client->client.load()->BroadcastWeights(views, stream);
  });
}

int32_t eplb_client_expert_squares(eplb_client* client, const eplb_replica_rows* rows,
                                   size_t num_rows, void* stream, double* squares,
                                   size_t num_squares) noexcept {
  // So that nobody reads what a call that fails, or one in a forked child, left unwritten.
  if (squares != nullptr) std::fill_n(squares, num_squares, 0.0);
  return CallOnTrainingThread(client, "expert_squares", Needs::kOpen, [&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const std::vector<eplb::ReplicaRows> views,
                          eplb::c::ReadRows(rows, num_rows));
    const eplb::PlacementView& view = client->client.load()->placement();
    const auto expected =
        static_cast<size_t>(view.num_layers) * static_cast<size_t>(view.num_experts);
    if (squares == nullptr) return absl::InvalidArgumentError("squares is NULL");
    if (num_squares != expected) {
      return absl::InvalidArgumentError(absl::StrCat("num_squares is ", num_squares, ", expected ",
                                                     expected, ", num_layers * num_experts"));
    }
    EPLB_ASSIGN_OR_RETURN(const std::vector<double> sums,
                          client->client.load()->ExpertSquares(views, stream));
    std::copy(sums.begin(), sums.end(), squares);
    return absl::OkStatus();
  });
}

}  // extern "C"
