#include "client/migration/executor.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/migration/row_message.h"
#include "client/migration/staging.h"

namespace eplb {

namespace {

std::span<std::byte> RowOf(const ExpertTensor& tensor, int32_t local_slot) {
  return {static_cast<std::byte*>(tensor.base) + local_slot * tensor.row_stride,
          static_cast<size_t>(tensor.row_bytes)};
}

}  // namespace

struct Executor::Impl {
  // Where a staged row goes at Commit.
  struct Arrival {
    std::span<const std::byte> staged;
    std::vector<std::span<std::byte>> rows;
  };

  Impl(const ExecutorOptions& executor_options, std::vector<ExpertTensor> expert_tensors,
       std::unique_ptr<Transport> row_transport, std::unique_ptr<cuda::RowQueue> row_queue,
       const ExpertBytes& bytes)
      : options(executor_options),
        tensors(std::move(expert_tensors)),
        by_layer(options.topology.num_layers(), tensors),
        carrier(std::move(row_transport), std::move(row_queue)),
        expert_bytes(bytes),
        first_slot(options.topology.FirstSlotOf(options.gpu).value) {}

  RankId RankOf(GpuId gpu) const {
    return options.ep_group.empty() ? RankId{gpu.value}
                                    : options.ep_group[static_cast<size_t>(gpu.value)];
  }

  absl::Status CheckBytes(const StagingLayout& layout, GpuId gpu) {
    const int64_t used = layout.used_bytes[gpu.value];
    const auto have = static_cast<int64_t>(carrier.staging().size());
    if (used <= have) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the plan needs ", used, " bytes of staging on GPU ", gpu.value,
                     ", the arena has ", have, ": ", used - have, " are missing"));
  }

  std::span<std::byte> StagedBytes(const StagedRow& row) {
    return carrier.staging().subspan(static_cast<size_t>(row.offset),
                                     static_cast<size_t>(row.tensor->row_bytes));
  }

  std::span<const std::byte> SourceBytes(const StagedRow& row) const {
    return RowOf(*row.tensor, row.transfer->source_slot.value - first_slot);
  }

  RowMoves MovesOf(const StagingLayout& layout, const StageOptions& stage) const {
    RowMoves moves{.post_id = stage.post_id,
                   .sends = {},
                   .receives = {},
                   .deadline = stage.deadline,
                   .stream = stage.stream};
    for (const StagedRow& row : layout.rows) {
      const Transfer& transfer = *row.transfer;
      if (transfer.is_local()) continue;
      if (transfer.source == options.gpu) {
        moves.sends.push_back({.to = RankOf(transfer.destination),
                               .row = row.row,
                               .round = transfer.round,
                               .bytes = SourceBytes(row),
                               .staging_offset = row.offset});
      } else {
        moves.receives.push_back({.from = RankOf(transfer.source),
                                  .row = row.row,
                                  .round = transfer.round,
                                  .staging_offset = row.offset,
                                  .num_bytes = row.tensor->row_bytes});
      }
    }
    return moves;
  }

  // Adds a batch, once those before have ended.
  absl::StatusOr<std::vector<uint64_t>> CopyAndWait(std::span<const cuda::RowCopy> rows,
                                                    absl::Time deadline) {
    EPLB_ASSIGN_OR_RETURN(const int64_t batch, carrier.queue().Copy(rows));
    carrier.SetLastBatch(batch);
    return carrier.AwaitLastBatch(deadline);
  }

  // Rows between slots of this GPU; they too are overwritten only at Commit.
  absl::Status StageLocal(const StagingLayout& layout, absl::Time deadline) {
    std::vector<const StagedRow*> rows;
    std::vector<cuda::RowCopy> copies;
    std::vector<cuda::RowCopy> reads;
    for (const StagedRow& row : layout.rows) {
      if (!row.transfer->is_local()) continue;
      const std::span<const std::byte> source = SourceBytes(row);
      const std::span<std::byte> staged = StagedBytes(row);
      rows.push_back(&row);
      copies.push_back({.source = source.data(),
                        .destination = staged.data(),
                        .num_bytes = row.tensor->row_bytes});
      reads.push_back({.source = staged.data(), .num_bytes = row.tensor->row_bytes});
    }
    if (rows.empty()) return absl::OkStatus();
    EPLB_ASSIGN_OR_RETURN(const std::vector<uint64_t> source_sums, CopyAndWait(copies, deadline));
    EPLB_ASSIGN_OR_RETURN(const std::vector<uint64_t> staged_sums, CopyAndWait(reads, deadline));
    for (size_t i = 0; i < rows.size(); ++i) {
      if (staged_sums[i] == source_sums[i]) continue;
      return absl::DataLossError(absl::StrCat(
          "tensor \"", rows[i]->tensor->name, "\" slot ", rows[i]->transfer->source_slot.value,
          ": checksum differs after a copy on GPU ", options.gpu.value));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Staged> MoveRows(const StagingLayout& layout, const StageOptions& stage) {
    EPLB_ASSIGN_OR_RETURN(const Ticket ticket, carrier.Post(MovesOf(layout, stage)));
    EPLB_RETURN_IF_ERROR(StageLocal(layout, stage.deadline));
    EPLB_ASSIGN_OR_RETURN(const Progress progress, carrier.Await(ticket));
    return Staged{.sent_bytes = progress.sent_bytes, .received_bytes = progress.received_bytes};
  }

  void RememberArrivals(const StagingLayout& layout) {
    for (const StagedRow& row : layout.rows) {
      if (row.transfer->destination != options.gpu) continue;
      Arrival& arrival = arrivals.emplace_back();
      arrival.staged = StagedBytes(row);
      const std::vector<SlotId>& slots = row.tensor->role == TensorRole::kWeight
                                             ? row.transfer->weight_slots
                                             : row.transfer->state_slots;
      for (const SlotId slot : slots) {
        arrival.rows.push_back(RowOf(*row.tensor, slot.value - first_slot));
      }
    }
  }

  const ExecutorOptions options;
  const std::vector<ExpertTensor> tensors;
  const TensorsByLayer by_layer;
  RowCarrier carrier;
  const ExpertBytes expert_bytes;
  const int32_t first_slot;
  bool holds_plan = false;
  std::vector<Arrival> arrivals;  // of the staged plan
};

Executor::Executor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Executor::~Executor() = default;

absl::StatusOr<std::unique_ptr<Executor>> Executor::Make(const ExecutorOptions& options,
                                                         std::vector<ExpertTensor> tensors,
                                                         std::unique_ptr<Transport> transport,
                                                         std::unique_ptr<cuda::RowQueue> queue) {
  EPLB_ASSIGN_OR_RETURN(const ExpertBytes bytes,
                        CheckTensors(options.topology, options.gpu, tensors, options.layers));
  EPLB_ASSIGN_OR_RETURN(const int64_t needed, StagingBytes(options, tensors));
  if (!options.ep_group.empty() && std::ssize(options.ep_group) != options.topology.num_gpus()) {
    return absl::InvalidArgumentError(absl::StrCat("ep_group has ", options.ep_group.size(),
                                                   " ranks, expected ",
                                                   options.topology.num_gpus()));
  }
  const auto have = static_cast<int64_t>(transport->staging().size());
  if (have < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("the transport's arena has ", have, " bytes, staging needs ", needed));
  }
  return std::unique_ptr<Executor>(new Executor(std::make_unique<Impl>(
      options, std::move(tensors), std::move(transport), std::move(queue), bytes)));
}

absl::Status Executor::CheckFits(const MigrationPlan& plan) const {
  EPLB_ASSIGN_OR_RETURN(
      const StagingLayout layout,
      LayOutStaging(plan, impl_->options.topology, impl_->by_layer, impl_->options.gpu));
  return impl_->CheckBytes(layout, impl_->options.gpu);
}

MigrationOptions Executor::migration_options() const {
  return {.weight_bytes = impl_->expert_bytes.weight,
          .state_bytes = impl_->expert_bytes.state,
          .state_residency = impl_->options.state_residency};
}

absl::StatusOr<Executor::Staged> Executor::Stage(const MigrationPlan& plan,
                                                 const StageOptions& options) {
  if (impl_->holds_plan) {
    return absl::FailedPreconditionError("a plan is staged already; commit or discard it first");
  }
  EPLB_ASSIGN_OR_RETURN(
      const StagingLayout layout,
      LayOutStaging(plan, impl_->options.topology, impl_->by_layer, impl_->options.gpu));
  // Arenas are equal on all ranks, so all refuse together, before anybody waits for a row.
  for (int32_t gpu = 0; gpu < impl_->options.topology.num_gpus(); ++gpu) {
    EPLB_RETURN_IF_ERROR(impl_->CheckBytes(layout, GpuId{gpu}));
  }
  absl::StatusOr<Staged> result = impl_->MoveRows(layout, options);
  if (!result.ok()) {
    impl_->carrier.Settle();
    return result;
  }
  impl_->holds_plan = true;
  impl_->RememberArrivals(layout);
  return result;
}

std::string_view Executor::transport_name() const { return impl_->carrier.transport_name(); }

std::string_view Executor::transport_fallback_reason() const {
  return impl_->carrier.transport_fallback_reason();
}

std::span<const ExpertTensor> Executor::tensors() const { return impl_->tensors; }

RowCarrier& Executor::carrier() { return impl_->carrier; }

bool Executor::may_vote() const { return impl_->carrier.may_vote(); }

absl::Status Executor::Commit(void* stream) {
  // Staging and slots never overlap, so the order does not matter, not even for a swap.
  std::vector<cuda::RowCopy> copies;
  for (const Impl::Arrival& arrival : impl_->arrivals) {
    for (const std::span<std::byte> row : arrival.rows) {
      copies.push_back({.source = arrival.staged.data(),
                        .destination = row.data(),
                        .num_bytes = static_cast<int64_t>(row.size())});
    }
  }
  impl_->holds_plan = false;
  impl_->arrivals.clear();
  if (copies.empty()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const int64_t batch, impl_->carrier.queue().Copy(copies));
  impl_->carrier.SetLastBatch(batch);
  return impl_->carrier.queue().LetFollow(stream);
}

void Executor::Discard() {
  impl_->holds_plan = false;
  impl_->arrivals.clear();
  impl_->carrier.Settle();
}

namespace {

// One Poll: short enough that a deadline is kept, long enough to cost nothing.
constexpr absl::Duration kPollWait = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::vector<uint64_t>> RowCarrier::AwaitLastBatch(absl::Time deadline) {
  if (!last_batch_.has_value()) return std::vector<uint64_t>();
  EPLB_RETURN_IF_ERROR(AwaitBatch(*queue_, *last_batch_, deadline));
  return queue_->TakeChecksums(*std::exchange(last_batch_, std::nullopt));
}

absl::StatusOr<Ticket> RowCarrier::Post(RowMoves moves) {
  EPLB_RETURN_IF_ERROR(AwaitLastBatch(moves.deadline).status());
  EPLB_RETURN_IF_ERROR(queue_->Follow(moves.stream));
  return transport_->Post(std::move(moves));
}

absl::StatusOr<Progress> RowCarrier::Await(Ticket ticket) {
  while (true) {
    EPLB_ASSIGN_OR_RETURN(const Progress progress, transport_->Poll(ticket, kPollWait));
    if (progress.done) return progress;
  }
}

void RowCarrier::Settle() {
  const bool ended = AwaitLastBatch(MonotonicNow() + kSettleTimeout).ok();
  may_vote_ = transport_->Abort().ok() && ended && may_vote_;
}

namespace {

absl::Status Refuse(const DerivedTensor& tensor, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\": ", why));
}

}  // namespace

absl::Status CheckDerived(const Topology& topology, std::span<const ExpertTensor> tensors,
                          std::span<const DerivedTensor> derived) {
  std::set<std::string> names;
  std::set<LayerId> layers;
  for (const ExpertTensor& tensor : tensors) {
    names.insert(tensor.name);
    layers.insert(tensor.layer);
  }
  for (const DerivedTensor& tensor : derived) {
    if (!names.insert(tensor.name).second) return Refuse(tensor, "registered twice");
    if (tensor.layer.value < 0 || tensor.layer.value >= topology.num_layers()) {
      return Refuse(tensor, absl::StrCat("layer ", tensor.layer.value, " is not in 0..",
                                         topology.num_layers() - 1));
    }
    if (!layers.contains(tensor.layer)) {
      return Refuse(tensor, absl::StrCat("layer ", tensor.layer.value,
                                         " has no tensor on this rank"
                                         " that it could be derived from"));
    }
    if (!tensor.rebuild) return Refuse(tensor, "is derived and has no rebuild");
  }
  return absl::OkStatus();
}

std::string DescribeDerived(std::span<const DerivedTensor> derived) {
  std::vector<const DerivedTensor*> sorted;
  for (const DerivedTensor& tensor : derived) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const DerivedTensor* a, const DerivedTensor* b) {
    return std::tie(a->layer, a->name) < std::tie(b->layer, b->name);
  });
  std::string text;
  for (const DerivedTensor* tensor : sorted) {
    absl::StrAppend(&text, "layer ", tensor->layer.value, " derived ", tensor->name, "\n");
  }
  return text;
}

std::map<LayerId, std::vector<int32_t>> WrittenSlots(const MigrationPlan& plan,
                                                     const Topology& topology, GpuId gpu) {
  std::map<LayerId, std::set<int32_t>> written;
  for (const std::vector<Transfer>* part : {&plan.transfers, &plan.local}) {
    for (const Transfer& transfer : *part) {
      if (transfer.destination != gpu) continue;
      for (const std::vector<SlotId>* slots : {&transfer.weight_slots, &transfer.state_slots}) {
        for (const SlotId slot : *slots) {
          written[transfer.layer].insert(slot.value - topology.FirstSlotOf(gpu).value);
        }
      }
    }
  }
  std::map<LayerId, std::vector<int32_t>> by_layer;
  for (const auto& [layer, slots] : written) by_layer[layer].assign(slots.begin(), slots.end());
  return by_layer;
}

absl::Status RebuildDerived(std::span<const DerivedTensor> derived, const MigrationPlan& plan,
                            const Topology& topology, GpuId gpu) {
  for (const auto& [layer, slots] : WrittenSlots(plan, topology, gpu)) {
    for (const DerivedTensor& tensor : derived) {
      if (tensor.layer != layer) continue;
      const absl::Status status = tensor.rebuild(layer.value, slots);
      if (status.ok()) continue;
      return absl::DataLossError(absl::StrCat("tensor \"", tensor.name,
                                              "\": its rebuild failed for local slots ",
                                              absl::StrJoin(slots, ", "), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace eplb
