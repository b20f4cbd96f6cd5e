#include "client/migration/executor.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "client/migration/staging_layout.h"
#include "cuda/checksum.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

// One Poll: short enough that a deadline is kept, long enough to cost nothing.
constexpr absl::Duration kPollWait = absl::Milliseconds(100);

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
       std::unique_ptr<Transport> row_transport, const ExpertBytes& bytes)
      : options(executor_options),
        tensors(std::move(expert_tensors)),
        by_layer(options.topology.num_layers(), tensors),
        transport(std::move(row_transport)),
        expert_bytes(bytes),
        first_slot(options.topology.FirstSlotOf(options.gpu).value) {}

  RankId RankOf(GpuId gpu) const {
    return RankId{options.lane * options.topology.num_gpus() + gpu.value};
  }

  absl::Status CheckBytes(const StagingLayout& layout, GpuId gpu) const {
    const int64_t used = layout.used_bytes[gpu.value];
    const auto have = static_cast<int64_t>(transport->staging().size());
    if (used <= have) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("the plan needs ", used, " bytes of staging on GPU ", gpu.value,
                     ", the arena has ", have, ": ", used - have, " are missing"));
  }

  std::span<std::byte> StagedBytes(const StagedRow& row) const {
    return transport->staging().subspan(static_cast<size_t>(row.offset),
                                        static_cast<size_t>(row.tensor->row_bytes));
  }

  std::span<const std::byte> SourceBytes(const StagedRow& row) const {
    return RowOf(*row.tensor, row.transfer->source_slot.value - first_slot);
  }

  RowMoves MovesOf(const StagingLayout& layout, uint64_t post_id, absl::Time deadline) const {
    RowMoves moves{.post_id = post_id, .sends = {}, .receives = {}, .deadline = deadline};
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

  // Rows between slots of this GPU; they too are overwritten only at Commit.
  absl::Status StageLocal(const StagingLayout& layout) const {
    for (const StagedRow& row : layout.rows) {
      if (!row.transfer->is_local()) continue;
      const std::span<const std::byte> source = SourceBytes(row);
      const std::span<std::byte> staged = StagedBytes(row);
      const uint64_t checksum = cuda::ChecksumOnHost(source);
      std::memcpy(staged.data(), source.data(), source.size());
      if (cuda::ChecksumOnHost(staged) != checksum) {
        return absl::DataLossError(
            absl::StrCat("tensor \"", row.tensor->name, "\" slot ", row.transfer->source_slot.value,
                         ": checksum differs after a copy on GPU ", options.gpu.value));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Staged> MoveRows(const StagingLayout& layout, uint64_t post_id,
                                  absl::Time deadline) {
    EPLB_ASSIGN_OR_RETURN(const Ticket ticket, transport->Post(MovesOf(layout, post_id, deadline)));
    EPLB_RETURN_IF_ERROR(StageLocal(layout));
    while (true) {
      EPLB_ASSIGN_OR_RETURN(const Progress progress, transport->Poll(ticket, kPollWait));
      if (progress.done) {
        return Staged{.sent_bytes = progress.sent_bytes, .received_bytes = progress.received_bytes};
      }
    }
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
  const std::unique_ptr<Transport> transport;
  const ExpertBytes expert_bytes;
  const int32_t first_slot;
  bool holds_plan = false;
  std::vector<Arrival> arrivals;  // of the staged plan
};

Executor::Executor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Executor::~Executor() = default;

absl::StatusOr<std::unique_ptr<Executor>> Executor::Make(const ExecutorOptions& options,
                                                         std::vector<ExpertTensor> tensors,
                                                         std::unique_ptr<Transport> transport) {
  EPLB_ASSIGN_OR_RETURN(const ExpertBytes bytes,
                        CheckTensors(options.topology, options.gpu, tensors));
  EPLB_ASSIGN_OR_RETURN(const int64_t needed, StagingBytes(options, tensors));
  if (options.lane < 0) {
    return absl::InvalidArgumentError(absl::StrCat("lane is ", options.lane));
  }
  const auto have = static_cast<int64_t>(transport->staging().size());
  if (have < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("the transport's arena has ", have, " bytes, staging needs ", needed));
  }
  return std::unique_ptr<Executor>(new Executor(
      std::make_unique<Impl>(options, std::move(tensors), std::move(transport), bytes)));
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

absl::StatusOr<Executor::Staged> Executor::Stage(const MigrationPlan& plan, uint64_t post_id,
                                                 absl::Time deadline) {
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
  absl::StatusOr<Staged> result = impl_->MoveRows(layout, post_id, deadline);
  if (!result.ok()) {
    impl_->transport->Abort();
    return result;
  }
  impl_->holds_plan = true;
  impl_->RememberArrivals(layout);
  return result;
}

void Executor::Commit() {
  // Staging and slots never overlap, so the order does not matter, not even for a swap.
  for (const Impl::Arrival& arrival : impl_->arrivals) {
    for (const std::span<std::byte> row : arrival.rows) {
      std::memcpy(row.data(), arrival.staged.data(), row.size());
    }
  }
  Discard();
}

void Executor::Discard() {
  impl_->holds_plan = false;
  impl_->arrivals.clear();
}

}  // namespace eplb
