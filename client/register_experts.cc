// Client::RegisterExperts: the ranks compare their tensors and choose how rows will move.
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "client/client_impl.h"
#include "client/registered_tensors.h"
#include "client/rows/paths/device_transports.h"
#include "client/rows/row_memory.h"
#include "client/start.h"
#include "client/tokens.h"

namespace eplb {

absl::StatusOr<JobNeeds> Client::Impl::CompareTensors(
    const absl::StatusOr<RegisteredTensors>& registered) const {
  const absl::StatusOr<TensorNeeds> needs = registered.ok()
                                                ? NeedsOf(*registered, MakeExecutorOptions())
                                                : absl::StatusOr<TensorNeeds>(registered.status());
  const StartRound round{.what = "tensors",
                         .mine = needs.ok() ? needs->compared : StartFields{},
                         .extra = needs.ok() ? needs->of_ep_group : StartFields{},
                         .error = needs.status(),
                         .pipeline_parallel_size = grid_.pipeline_parallel_size()};
  EPLB_ASSIGN_OR_RETURN(const std::vector<StartFields> of_ep_group,
                        RunStartRound(round, options_.rank, options_.world_size, all_gather_));
  return JoinEpGroups(*needs, of_ep_group, grid_, options_.num_layers);
}

absl::StatusOr<RowMover> Client::Impl::TakeMover(const JobNeeds& needs) {
  if (transport_ == nullptr) return MakeRowMover(MakeRowMoverOptions(needs), all_gather_);
  RowMover mover{
      .transport = std::move(transport_), .queue = cuda::MakeHostRowQueue(), .report = {}};
  mover.report.name = std::string(mover.transport->name());
  return mover;
}

absl::Status Client::Impl::MakeRouteTables(const RowMemory& memory) {
  EPLB_RETURN_IF_ERROR(LoadTokenKernels(memory));
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

absl::StatusOr<Client::Impl::RowWorkers> Client::Impl::MakeWorkers(const RowMemory& memory,
                                                                   std::vector<ExpertTensor> moved,
                                                                   RowMover& mover) {
  EPLB_RETURN_IF_ERROR(MakeRouteTables(memory));
  RowWorkers workers{.expert_squares = std::make_unique<ExpertSquareSums>()};
  EPLB_ASSIGN_OR_RETURN(workers.executor,
                        Executor::Make(MakeExecutorOptions(), std::move(moved),
                                       std::move(mover.transport), std::move(mover.queue)));
  Executor& executor = *workers.executor;
  EPLB_RETURN_IF_ERROR(workers.expert_squares->Reserve(
      topology_, std::ssize(LayersOf(executor.tensors())), std::ssize(executor.carrier().staging()),
      executor.carrier().queue()));
  return workers;
}

absl::Status Client::Impl::Register(std::span<const ExpertTensorView> views) {
  EPLB_RETURN_IF_ERROR(ended_);
  if (disabled_) {
    if (route_tables_ != nullptr) return absl::OkStatus();
    // Kernels still route by the tables.
    EPLB_ASSIGN_OR_RETURN(const RegisteredTensors tensors, SortByRole(views));
    EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemory(tensors.moved));
    return MakeRouteTables(memory);
  }
  if (executor_ != nullptr) {
    return absl::FailedPreconditionError("RegisterExperts was called twice");
  }
  absl::StatusOr<RegisteredTensors> registered = SortByRole(views);
  if (registered.ok()) {
    if (absl::Status stay = CheckRowsStay(*registered); !stay.ok()) registered = stay;
  }
  EPLB_ASSIGN_OR_RETURN(const JobNeeds needs, CompareTensors(registered));
  EPLB_ASSIGN_OR_RETURN(RowMover mover, TakeMover(needs));
  absl::StatusOr<RowWorkers> workers =
      MakeWorkers(needs.memory, std::move(registered->moved), mover);
  const StartRound round{
      .what = "registration", .mine = {}, .extra = {}, .error = workers.status()};
  EPLB_RETURN_IF_ERROR(
      RunStartRound(round, options_.rank, options_.world_size, all_gather_).status());
  EPLB_RETURN_IF_ERROR(control_->Barrier(options_.start_deadline));
  // This is the last step that can fail, so a failed registration leaves no executor to other
  // calls.
  EPLB_RETURN_IF_ERROR(PrepareAhead(*workers->executor, mover.report));
  executor_ = std::move(workers->executor);
  expert_squares_ = std::move(workers->expert_squares);
  rows_on_device_ = needs.memory.device.has_value();
  derived_ = std::move(registered->derived);
  pipeline_stage_of_layer_ = needs.pipeline_stage_of_layer;
  migration_ = {.weight_bytes = needs.bytes.weight,
                .state_bytes = needs.bytes.state,
                .state_residency = MakeExecutorOptions().state_residency};
  StartSession(Identity(needs.bytes, mover.report));
  return absl::OkStatus();
}

}  // namespace eplb
