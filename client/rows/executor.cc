#include "client/rows/executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/row_message.h"

namespace eplb {

namespace {

// Room in staging that a slot of this rank's layers needs.
struct SlotNeeds {
  int64_t rows = 0;   // tensors of a layer
  int64_t bytes = 0;  // their rows, each rounded up
};

SlotNeeds NeedsOfSlot(std::span<const ExpertTensor> tensors) {
  SlotNeeds needs;
  for (const ExpertTensor& tensor : tensors) {
    if (tensor.layer != tensors.front().layer) continue;
    ++needs.rows;
    needs.bytes += RoundUpToStaging(tensor.row_bytes);
  }
  return needs;
}

}  // namespace

int32_t StagingLayers(const ExecutorOptions& options, std::span<const ExpertTensor> tensors) {
  if (options.layers_per_chunk > 0) return options.layers_per_chunk;
  if (tensors.empty()) return options.topology.num_layers();  // nothing is moved
  const SlotNeeds slot = NeedsOfSlot(tensors);
  const int64_t slots = options.topology.max_slots_per_gpu();
  const int64_t small = std::min(kSmallStagingBytes / slots / std::max<int64_t>(1, slot.bytes),
                                 cuda::RowQueue::kMaxRows / slots / slot.rows);
  return static_cast<int32_t>(std::max<int64_t>(
      kLeastStagingLayers, std::min<int64_t>(small, options.topology.num_layers())));
}

absl::StatusOr<int64_t> StagingBytes(const ExecutorOptions& options,
                                     std::span<const ExpertTensor> tensors) {
  EPLB_RETURN_IF_ERROR(
      CheckTensors(options.topology, options.gpu, tensors, options.layers).status());
  if (options.layers_per_chunk < 0) {
    return InvalidInput("layers_per_chunk is ", options.layers_per_chunk, ", expected at least 0");
  }
  if (tensors.empty()) return 0;
  const int32_t layers = StagingLayers(options, tensors);
  const int64_t experts = std::min<int64_t>(layers, std::ssize(LayersOf(tensors))) *
                          options.topology.max_slots_per_gpu();
  const SlotNeeds slot = NeedsOfSlot(tensors);
  if (experts * slot.rows > cuda::RowQueue::kMaxRows) {
    return InvalidInput("a chunk of ", layers, " layers with ",
                        options.topology.max_slots_per_gpu(), " slots of ", slot.rows,
                        " tensors has ", experts * slot.rows, " rows, at most ",
                        cuda::RowQueue::kMaxRows, " are moved together; lower layers_per_chunk");
  }
  if (slot.bytes > std::numeric_limits<int64_t>::max() / experts) {
    return InvalidInput("staging for ", experts, " experts of ", slot.bytes,
                        " bytes exceeds 2^63 bytes");
  }
  return experts * slot.bytes;
}

Executor::Executor(const ExecutorOptions& options, std::vector<ExpertTensor> tensors,
                   std::unique_ptr<Transport> transport, std::unique_ptr<cuda::RowQueue> queue)
    : options_(options),
      tensors_(std::move(tensors)),
      by_layer_(options_.topology.num_layers(), tensors_),
      carrier_(std::move(transport), std::move(queue)),
      first_slot_(options_.topology.FirstSlotOf(options_.gpu).value) {}

absl::StatusOr<std::unique_ptr<Executor>> Executor::Make(const ExecutorOptions& options,
                                                         std::vector<ExpertTensor> tensors,
                                                         std::unique_ptr<Transport> transport,
                                                         std::unique_ptr<cuda::RowQueue> queue) {
  EPLB_ASSIGN_OR_RETURN(const int64_t needed, StagingBytes(options, tensors));
  if (!options.ep_group.empty() && std::ssize(options.ep_group) != options.topology.num_gpus()) {
    return InvalidInput("ep_group has ", options.ep_group.size(), " ranks, expected ",
                        options.topology.num_gpus());
  }
  const auto have = static_cast<int64_t>(transport->staging().size());
  if (have < needed) {
    return InvalidInput("the transport's arena has ", have, " bytes, staging needs ", needed);
  }
  return std::unique_ptr<Executor>(
      new Executor(options, std::move(tensors), std::move(transport), std::move(queue)));
}

RankId Executor::RankOf(GpuId gpu) const {
  return options_.ep_group.empty() ? RankId{gpu.value}
                                   : options_.ep_group[static_cast<size_t>(gpu.value)];
}

absl::Status Executor::CheckBytes(const StagingLayout& layout, GpuId gpu) const {
  const int64_t used = layout.used_bytes[gpu.value];
  const auto have = static_cast<int64_t>(carrier_.staging().size());
  if (used <= have) return absl::OkStatus();
  return ResourceExhausted("the plan needs ", used, " bytes of staging on GPU ", gpu.value,
                           ", the arena has ", have, ": ", used - have, " are missing");
}

std::span<std::byte> Executor::StagedBytes(const StagedRow& row) {
  return carrier_.staging().subspan(static_cast<size_t>(row.offset),
                                    static_cast<size_t>(row.tensor->row_bytes));
}

std::span<const std::byte> Executor::SourceBytes(const StagedRow& row) const {
  return row.tensor->Row(row.transfer->source_slot.value - first_slot_);
}

RowMoves Executor::MovesOf(const StagingLayout& layout, const StageOptions& stage) const {
  RowMoves moves{.post_id = stage.post_id,
                 .deadline = stage.deadline,
                 .begin_by = stage.begin_by,
                 .stream = stage.stream,
                 .time_rounds = stage.timed,
                 .keep_sums = stage.keep_sums};
  for (const StagedRow& row : layout.rows) {
    const Transfer& transfer = *row.transfer;
    if (transfer.is_local()) continue;
    if (transfer.source == options_.gpu) {
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

absl::StatusOr<std::vector<uint64_t>> Executor::CopyAndWait(std::span<const cuda::RowCopy> rows,
                                                            absl::Time deadline) {
  EPLB_ASSIGN_OR_RETURN(const int64_t batch, carrier_.queue().Copy(rows));
  carrier_.SetLastBatch(batch);
  return carrier_.AwaitLastBatch(deadline);
}

absl::StatusOr<std::vector<uint64_t>> Executor::StageLocal(const StagingLayout& layout,
                                                           absl::Time deadline) {
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
  if (rows.empty()) return std::vector<uint64_t>();
  EPLB_ASSIGN_OR_RETURN(std::vector<uint64_t> source_sums, CopyAndWait(copies, deadline));
  EPLB_ASSIGN_OR_RETURN(const std::vector<uint64_t> staged_sums, CopyAndWait(reads, deadline));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (staged_sums[i] == source_sums[i]) continue;
    return DataLoss("tensor \"", rows[i]->tensor->name, "\" slot ",
                    rows[i]->transfer->source_slot.value, ": checksum differs after a copy on GPU ",
                    options_.gpu.value);
  }
  return source_sums;
}

absl::StatusOr<Executor::Staged> Executor::MoveRows(const StagingLayout& layout,
                                                    const StageOptions& stage) {
  const absl::Duration limit = stage.deadline - MonotonicNow();
  EPLB_ASSIGN_OR_RETURN(const Ticket ticket, carrier_.Post(MovesOf(layout, stage)));
  const absl::Time deadline = MonotonicNow() + limit;  // Post may have waited
  Staged staged;
  const bool any_local =
      std::ranges::any_of(layout.rows, [](const auto& row) { return row.transfer->is_local(); });
  if (stage.timed && any_local) staged.local_began = MonotonicNow();
  EPLB_ASSIGN_OR_RETURN(staged.local_sums, StageLocal(layout, deadline));
  if (stage.timed && any_local) staged.local_ended = MonotonicNow();
  EPLB_ASSIGN_OR_RETURN(Progress progress, carrier_.Await(ticket));
  staged.sent_bytes = progress.sent_bytes;
  staged.received_bytes = progress.received_bytes;
  staged.rounds = std::move(progress.rounds);
  staged.sent = std::move(progress.sent);
  return staged;
}

void Executor::RememberArrivals(const StagingLayout& layout) {
  for (const StagedRow& row : layout.rows) {
    if (row.transfer->destination != options_.gpu) continue;
    Arrival& arrival = arrivals_.emplace_back();
    arrival.staged = StagedBytes(row);
    const std::vector<SlotId>& slots = row.tensor->role == TensorRole::kWeight
                                           ? row.transfer->weight_slots
                                           : row.transfer->state_slots;
    for (const SlotId slot : slots) {
      arrival.rows.push_back(row.tensor->Row(slot.value - first_slot_));
    }
  }
}

absl::Status Executor::CheckFits(const MigrationPlan& plan) const {
  EPLB_ASSIGN_OR_RETURN(const StagingLayout layout,
                        LayOutStaging(plan, options_.topology, by_layer_, options_.gpu));
  return CheckBytes(layout, options_.gpu);
}

absl::StatusOr<StagingLayout> Executor::LayOut(const MigrationPlan& plan) const {
  if (holds_plan_ || begun_.has_value()) {
    return FailedPrecondition("a plan is staged already; commit or discard it first");
  }
  EPLB_ASSIGN_OR_RETURN(StagingLayout layout,
                        LayOutStaging(plan, options_.topology, by_layer_, options_.gpu));
  // Arenas are equal on all ranks, so all refuse together, before any of them waits for a row.
  for (int32_t gpu = 0; gpu < options_.topology.num_gpus(); ++gpu) {
    EPLB_RETURN_IF_ERROR(CheckBytes(layout, GpuId{gpu}));
  }
  return layout;
}

absl::Status Executor::Hold(const StagingLayout& layout, const absl::Status& moved) {
  if (!moved.ok()) {
    carrier_.Settle();
    return moved;
  }
  holds_plan_ = true;
  RememberArrivals(layout);
  return absl::OkStatus();
}

absl::StatusOr<Executor::Staged> Executor::Stage(const MigrationPlan& plan,
                                                 const StageOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const StagingLayout layout, LayOut(plan));
  absl::StatusOr<Staged> result = MoveRows(layout, options);
  EPLB_RETURN_IF_ERROR(Hold(layout, result.status()));
  return result;
}

absl::Status Executor::Commit(void* stream) {
  // Staging and slots never overlap, so the order does not matter, not even for a swap.
  std::vector<cuda::RowCopy> copies;
  for (const Arrival& arrival : arrivals_) {
    for (const std::span<std::byte> row : arrival.rows) {
      copies.push_back({.source = arrival.staged.data(),
                        .destination = row.data(),
                        .num_bytes = static_cast<int64_t>(row.size())});
    }
  }
  holds_plan_ = false;
  arrivals_.clear();
  if (copies.empty() || CopyIntoSlots(copies, stream).ok()) return absl::OkStatus();
  // Every rank has voted yes. Rows are copied from staging again, which is as it was.
  EPLB_RETURN_IF_ERROR(carrier_.queue().Drain(MonotonicNow() + kSettleTimeout));
  return CopyIntoSlots(copies, stream);
}

absl::Status Executor::CopyIntoSlots(std::span<const cuda::RowCopy> copies, void* stream) {
  // The staged rows were summed before the vote, and no rank would compare sums here.
  EPLB_ASSIGN_OR_RETURN(const int64_t batch, carrier_.queue().CopyUnsummed(copies));
  carrier_.SetLastBatch(batch);
  return carrier_.queue().LetFollow(stream);
}

void Executor::Discard(bool all_whole) {
  holds_plan_ = false;
  arrivals_.clear();
  carrier_.Settle();
  if (!all_whole) carrier_.DropShared();
}

}  // namespace eplb
