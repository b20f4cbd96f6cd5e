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
                                                ? NeedsOf(*registered, setup_.MakeExecutorOptions())
                                                : absl::StatusOr<TensorNeeds>(registered.status());
  const StartRound round{.what = "tensors",
                         .mine = needs.ok() ? needs->compared : StartFields{},
                         .extra = needs.ok() ? needs->of_ep_group : StartFields{},
                         .error = needs.status(),
                         .pipeline_parallel_size = setup_.grid.pipeline_parallel_size()};
  EPLB_ASSIGN_OR_RETURN(const std::vector<StartFields> of_ep_group, setup_.Exchange(round));
  return JoinEpGroups(*needs, of_ep_group, setup_.grid, setup_.options.num_layers);
}

absl::StatusOr<RowMover> Client::Impl::TakeMover(const JobNeeds& needs) {
  if (transport_ == nullptr)
    return MakeRowMover(setup_.MakeRowMoverOptions(needs), setup_.all_gather);
  RowMover mover{.transport = std::move(transport_), .queue = cuda::MakeHostRowQueue()};
  mover.report.name = std::string(mover.transport->name());
  return mover;
}

absl::StatusOr<Client::Impl::RowWorkers> Client::Impl::MakeWorkers(const RowMemory& memory,
                                                                   std::vector<ExpertTensor> moved,
                                                                   RowMover& mover) {
  EPLB_RETURN_IF_ERROR(shown_.MakeRouteTables(memory));
  RowWorkers workers{.expert_squares = std::make_unique<ExpertSquareSums>()};
  EPLB_ASSIGN_OR_RETURN(workers.executor,
                        Executor::Make(setup_.MakeExecutorOptions(), std::move(moved),
                                       std::move(mover.transport), std::move(mover.queue)));
  Executor& executor = *workers.executor;
  EPLB_RETURN_IF_ERROR(workers.expert_squares->Reserve(
      setup_.topology, std::ssize(LayersOf(executor.tensors())),
      std::ssize(executor.carrier().staging()), executor.carrier().queue()));
  return workers;
}

absl::Status Client::Impl::Register(std::span<const ExpertTensorView> views) {
  EPLB_RETURN_IF_ERROR(ended_);
  if (setup_.disabled) {
    if (shown_.has_route_tables()) return absl::OkStatus();
    // Kernels still route by the tables.
    EPLB_ASSIGN_OR_RETURN(const RegisteredTensors tensors, SortByRole(views));
    EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemory(tensors.moved));
    return shown_.MakeRouteTables(memory);
  }
  if (rows_.executor != nullptr) {
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
  const StartRound round{.what = "registration", .error = workers.status()};
  EPLB_RETURN_IF_ERROR(setup_.Exchange(round).status());
  EPLB_RETURN_IF_ERROR(control_->Barrier(setup_.options.start_deadline));
  // This is the last step that can fail, so a failed registration leaves no executor to other
  // calls.
  EPLB_RETURN_IF_ERROR(PrepareAhead(*workers->executor, mover.report));
  rows_.executor = std::move(workers->executor);
  rows_.expert_squares = std::move(workers->expert_squares);
  rows_.staging_layers = needs.staging_layers;
  rows_.on_device = needs.memory.device.has_value();
  rows_.derived = std::move(registered->derived);
  rows_.pipeline_stage_of_layer = needs.pipeline_stage_of_layer;
  rows_.migration = {
      .weight_bytes = needs.bytes.weight,
      .state_bytes = needs.bytes.state,
      .state_residency = setup_.options.state_placement == StatePlacement::kWithPrimary
                             ? StateResidency::kWithPrimary
                             : StateResidency::kEveryReplica};
  StartSession(setup_.MakeHello(needs, mover.report));
  return absl::OkStatus();
}

}  // namespace eplb
