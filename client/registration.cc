// Client::RegisterExperts: what ranks compare, and how their rows will move.
#include <utility>

#include "client/client_impl.h"
#include "client/migration/device_transports.h"
#include "placement/status_macros.h"

namespace eplb {

absl::StatusOr<JobNeeds> Client::Impl::CompareTensors(
    const absl::StatusOr<RegisteredTensors>& registered) const {
  const absl::StatusOr<TensorNeeds> needs = registered.ok()
                                                ? NeedsOf(*registered, MakeExecutorOptions())
                                                : absl::StatusOr<TensorNeeds>(registered.status());
  const StartRound round{.what = "tensors",
                         .mine = needs.ok() ? needs->compared : StartFields{},
                         .extra = needs.ok() ? needs->of_lane : StartFields{},
                         .error = needs.status(),
                         .num_pipeline_ranks = grid_.num_pipeline_ranks()};
  EPLB_ASSIGN_OR_RETURN(const std::vector<StartFields> of_lane,
                        RunStartRound(round, options_.rank, options_.world_size, exchange_));
  return JoinLanes(*needs, of_lane, grid_, options_.num_layers);
}

absl::StatusOr<RowMover> Client::Impl::TakeMover(const JobNeeds& needs) {
  if (transport_ == nullptr) return MakeRowMover(MakeRowMoverOptions(needs), exchange_);
  RowMover mover{
      .transport = std::move(transport_), .queue = cuda::MakeHostRowQueue(), .report = {}};
  mover.report.name = std::string(mover.transport->name());
  return mover;
}

absl::Status Client::Impl::MakeRouteTables(const RowMemory& memory) {
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> queue, MakeQueueFor(memory));
  EPLB_ASSIGN_OR_RETURN(route_tables_,
                        RouteTables::Make(std::move(queue), *running_.placement, gpu()));
  const RouteArrays& arrays = route_tables_->arrays();
  device_tables_ = {.num_layers = topology_.num_layers(),
                    .num_experts = topology_.num_experts(),
                    .num_slots = topology_.num_slots(),
                    .physical_to_logical_map = arrays.physical_to_logical,
                    .logical_replica_count = arrays.replica_count,
                    .replicas = arrays.replicas,
                    .first_replica = arrays.first_replica,
                    .candidates = arrays.candidates,
                    .first_candidate = arrays.first_candidate,
                    .thresholds = arrays.thresholds};
  return absl::OkStatus();
}

absl::Status Client::Impl::Register(std::span<const ExpertTensorView> views) {
  EPLB_RETURN_IF_ERROR(ended_);
  if (disabled_) {
    if (route_tables_ != nullptr) return absl::OkStatus();
    // Kernels route by the tables all the same.
    EPLB_ASSIGN_OR_RETURN(const RegisteredTensors tensors, SortByRole(views));
    EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemory(tensors.moved));
    return MakeRouteTables(memory);
  }
  if (executor_ != nullptr) {
    return absl::FailedPreconditionError("RegisterExperts was called before");
  }
  absl::StatusOr<RegisteredTensors> registered = SortByRole(views);
  EPLB_ASSIGN_OR_RETURN(const JobNeeds needs, CompareTensors(registered));
  EPLB_ASSIGN_OR_RETURN(RowMover mover, TakeMover(needs));
  EPLB_RETURN_IF_ERROR(MakeRouteTables(needs.memory));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                        Executor::Make(MakeExecutorOptions(), std::move(registered->moved),
                                       std::move(mover.transport), std::move(mover.queue)));
  EPLB_RETURN_IF_ERROR(control_->Barrier(options_.start_deadline));
  executor_ = std::move(executor);
  rows_on_device_ = needs.memory.device.has_value();
  derived_ = std::move(registered->derived);
  pipeline_rank_of_layer_ = needs.pipeline_rank_of_layer;
  migration_ = {.weight_bytes = needs.bytes.weight,
                .state_bytes = needs.bytes.state,
                .state_residency = MakeExecutorOptions().state_residency};
  StartSession(Identity(needs.bytes, mover.report));
  return absl::OkStatus();
}

}  // namespace eplb
