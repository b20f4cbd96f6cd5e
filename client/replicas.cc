// Client::ReduceGradients, BroadcastWeights and ExpertSquares: an expert in several slots stays one
// expert in training.
#include <algorithm>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/client_impl.h"
#include "client/rows/row_memory.h"

namespace eplb {
namespace {

cuda::ElementType ElementOf(GradientType type) {
  switch (type) {
    case GradientType::kFloat64:
      return cuda::ElementType::kFloat64;
    case GradientType::kBfloat16:
      return cuda::ElementType::kBfloat16;
    case GradientType::kFloat16:
      return cuda::ElementType::kFloat16;
    case GradientType::kFloat32:
      break;
  }
  return cuda::ElementType::kFloat32;
}

}  // namespace

std::vector<ReplicaTensor> Client::Impl::TensorsOf(std::span<const ReplicaRows> rows) {
  std::vector<ReplicaTensor> tensors;
  for (const ReplicaRows& view : rows) {
    tensors.push_back({.rows = {.name = view.name,
                                .layer = LayerId{view.layer},
                                .base = view.base,
                                .num_rows = view.num_rows,
                                .row_bytes = view.row_bytes,
                                .row_stride = view.row_stride},
                       .type = ElementOf(view.type)});
  }
  return tensors;
}

absl::Status Client::Impl::ReduceGradients(std::span<const ReplicaRows> rows, void* stream) {
  constexpr char kName[] = "ReduceGradients";
  const std::vector<ReplicaTensor> tensors = TensorsOf(rows);
  EPLB_RETURN_IF_ERROR(CheckReplicaCall(kName, tensors, ReplicaFlow::kToPrimary, stream));
  if (setup_.disabled) return absl::OkStatus();
  const EpGroupCall call = MakeEpGroupCall(kName, tensors, stream);
  EPLB_ASSIGN_OR_RETURN(const ReplicaPosts to_primary,
                        PlanReplicas(tensors, ReplicaFlow::kToPrimary, call));
  ReplicaPosts from_primary;
  if (setup_.options.state_placement == StatePlacement::kEveryReplica) {
    EPLB_ASSIGN_OR_RETURN(from_primary, PlanReplicas(tensors, ReplicaFlow::kFromPrimary, call));
  }
  EPLB_RETURN_IF_ERROR(
      EndIfFailed(kName, CarryReplicaRows(to_primary, ReplicaFlow::kToPrimary, call)));
  return EndIfFailed(kName, CarryReplicaRows(from_primary, ReplicaFlow::kFromPrimary, call));
}

absl::Status Client::Impl::BroadcastWeights(std::span<const ReplicaRows> rows, void* stream) {
  constexpr char kName[] = "BroadcastWeights";
  const std::vector<ReplicaTensor> tensors = TensorsOf(rows);
  EPLB_RETURN_IF_ERROR(CheckReplicaCall(kName, tensors, ReplicaFlow::kFromPrimary, stream));
  if (setup_.disabled) return absl::OkStatus();
  const EpGroupCall call = MakeEpGroupCall(kName, tensors, stream);
  EPLB_ASSIGN_OR_RETURN(const ReplicaPosts posts,
                        PlanReplicas(tensors, ReplicaFlow::kFromPrimary, call));
  return EndIfFailed(kName, CarryReplicaRows(posts, ReplicaFlow::kFromPrimary, call));
}

absl::StatusOr<std::vector<double>> Client::Impl::SumExpertSquares(
    std::span<const ReplicaRows> rows, void* stream) {
  constexpr char kName[] = "ExpertSquares";
  if (setup_.disabled) {
    return FailedPrecondition(
        "ExpertSquares: with EPLB_DISABLE=1 nothing is carried between ranks");
  }
  const std::vector<ReplicaTensor> tensors = TensorsOf(rows);
  EPLB_RETURN_IF_ERROR(CheckReplicaCall(kName, tensors, ReplicaFlow::kToPrimary, stream));
  if (absl::Status fit = CheckSquaresFit(setup_.topology, tensors, StagingBytes()); !fit.ok()) {
    return ResourceExhausted(kName, ": ", fit.message());
  }
  absl::StatusOr<std::vector<double>> squares =
      rows_.expert_squares->Sum(tensors, MakeEpGroupCall(kName, tensors, stream));
  EPLB_RETURN_IF_ERROR(EndIfFailed(kName, squares.status()));
  return squares;
}

absl::Status Client::Impl::CheckReplicaCall(const char* name,
                                            std::span<const ReplicaTensor> tensors,
                                            ReplicaFlow flow, void* stream) const {
  if (setup_.disabled) return CheckNoReplicas(name, tensors);
  EPLB_RETURN_IF_ERROR(CheckRegistered(name));
  if (setup_.options.ahead) {
    return FailedPrecondition(
        name, ": with the option ahead rows move between the votes, and no others can; drop ahead");
  }
  EPLB_RETURN_IF_ERROR(CheckNotCarried(name));
  EPLB_RETURN_IF_ERROR(CheckStream(stream));
  EPLB_RETURN_IF_ERROR(CheckReplicaTensors(setup_.topology, setup_.gpu(), tensors, flow));
  for (const ReplicaTensor& tensor : tensors) {
    EPLB_RETURN_IF_ERROR(CheckHeld(name, tensor.rows.layer.value));
  }
  std::vector<ExpertTensor> together;  // the registered tensors say which memory it must be
  for (const ExpertTensor& tensor :
       rows_.executor->tensors().first(std::min<size_t>(1, rows_.executor->tensors().size()))) {
    together.push_back(tensor);
  }
  for (const ReplicaTensor& tensor : tensors) together.push_back(tensor.rows);
  return FindMemory(together).status();
}

absl::Status Client::Impl::CheckNoReplicas(const char* name,
                                           std::span<const ReplicaTensor> tensors) const {
  for (const ReplicaTensor& tensor : tensors) {
    const LayerId layer = tensor.rows.layer;
    if (layer.value < 0 || layer.value >= setup_.topology.num_layers()) continue;
    for (int32_t expert = 0; expert < setup_.topology.num_experts(); ++expert) {
      if (running().placement->ReplicaCount(layer, ExpertId{expert}) < 2) continue;
      return FailedPrecondition(name, ": layer ", layer.value, ": expert ", expert,
                                " has replicas, and with EPLB_DISABLE=1 nothing is carried between "
                                "them; train with num_slots = num_experts");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Client::Impl::ReplicaPosts> Client::Impl::PlanReplicas(
    std::span<const ReplicaTensor> tensors, ReplicaFlow flow, const EpGroupCall& call) const {
  return PlanReplicaPosts(*running().placement, setup_.gpu(), tensors, flow, StagingBytes(),
                          call.first_row);
}

EpGroupCall Client::Impl::MakeEpGroupCall(const char* name, std::span<const ReplicaTensor> tensors,
                                          void* stream) {
  return {.carrier = rows_.executor->carrier(),
          .placement = *running().placement,
          .gpu = setup_.gpu(),
          .ranks = setup_.EpGroup(),
          .next_post_id = [this] { return rows_.NextPost(); },
          // Ranks come as they are through with their step: it is waited for them as in a vote.
          .deadline = MonotonicNow() + setup_.options.vote_deadline,
          .first_row = FirstRowOf(name, tensors),
          .stream = stream};
}

absl::Status Client::Impl::EndIfFailed(const char* name, const absl::Status& status) {
  if (status.ok()) return status;
  rows_.executor->carrier().Settle();
  return End(Aborted(name, " before the boundary of step ", next_step_,
                     " failed half-way: ", status.message()));
}

}  // namespace eplb
