// Executor's staging beside the steps of a trainer whose rows do not change, and the proof that
// they did not.
#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/executor.h"

namespace eplb {

namespace {

// Rows in one batch, far fewer than the queue holds.
constexpr size_t kReadsTogether = 16'384;
static_assert(kReadsTogether < cuda::RowQueue::kMaxRows);

}  // namespace

absl::Status Executor::BeginStage(const MigrationPlan& plan, const StageOptions& options) {
  const auto begin = [&]() -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(StagingLayout layout, LayOut(plan));
    // Only now is it known what the stream holds: later it may be under graph capture, or have
    // work of the next step.
    EPLB_RETURN_IF_ERROR(carrier_.queue().Follow(options.stream));
    begun_ = {.layout = std::move(layout), .options = options};
    begun_->options.stream = carrier_.queue().stream();
    begun_->options.keep_sums = true;
    return absl::OkStatus();
  };
  absl::Status status = begin();
  if (!status.ok()) carrier_.Refuse(options.post_id);
  return status;
}

absl::StatusOr<Executor::Staged> Executor::FinishStage() {
  const Begun begun = *std::exchange(begun_, std::nullopt);
  carrier_.queue().AllowCaptures();
  absl::StatusOr<Staged> result = MoveRows(begun.layout, begun.options);
  absl::Status status = result.status();
  if (status.ok()) {
    absl::StatusOr<std::vector<ReadBytes>> reads = ReadsOf(begun.layout, *result);
    status = reads.status();
    if (status.ok()) reads_ = *std::move(reads);
  }
  EPLB_RETURN_IF_ERROR(Hold(begun.layout, status));
  return result;
}

Executor::ReadBytes Executor::ReadOf(const StagedRow& row) const {
  return {.tensor = row.tensor, .slot = row.transfer->source_slot, .bytes = SourceBytes(row)};
}

absl::StatusOr<std::vector<Executor::ReadBytes>> Executor::ReadsOf(const StagingLayout& layout,
                                                                   const Staged& staged) const {
  std::vector<ReadBytes> reads;
  std::vector<ReadBytes> sends;  // whole rows, in MovesOf's order
  int64_t unknown = 0;           // bytes
  for (const StagedRow& row : layout.rows) {
    if (row.transfer->is_local()) {
      reads.push_back(ReadOf(row));
    } else if (row.transfer->source == options_.gpu) {
      sends.push_back(ReadOf(row));
      unknown += row.tensor->row_bytes;
    }
  }
  if (reads.size() != staged.local_sums.size()) {
    return Internal("not every row between local slots has a checksum");
  }
  for (size_t i = 0; i < reads.size(); ++i) reads[i].checksum = staged.local_sums[i];
  for (const SentPiece& piece : staged.sent) {
    ReadBytes& read = reads.emplace_back(sends.at(piece.send));
    read.bytes =
        read.bytes.subspan(static_cast<size_t>(piece.offset), static_cast<size_t>(piece.num_bytes));
    read.checksum = piece.checksum;
    unknown -= piece.num_bytes;
  }
  if (unknown == 0) return reads;
  return Internal("transport ", std::string(transport_name()), " did not report the checksums of ",
                  unknown, " bytes that it sent");
}

absl::Status Executor::CheckSources(void* stream, absl::Time deadline) {
  // A kernel that stands behind the step could not be ended: the rank would have to leave the run.
  EPLB_RETURN_IF_ERROR(carrier_.CatchUp(stream, deadline));
  for (size_t first = 0; first < reads_.size(); first += kReadsTogether) {
    const size_t size = std::min(kReadsTogether, reads_.size() - first);
    EPLB_RETURN_IF_ERROR(CheckReads(std::span(reads_).subspan(first, size), deadline));
  }
  return absl::OkStatus();
}

absl::Status Executor::CheckReads(std::span<const ReadBytes> reads, absl::Time deadline) {
  std::vector<cuda::RowCopy> again;
  again.reserve(reads.size());
  for (const ReadBytes& read : reads) {
    again.push_back(
        {.source = read.bytes.data(), .num_bytes = static_cast<int64_t>(read.bytes.size())});
  }
  EPLB_ASSIGN_OR_RETURN(const std::vector<uint64_t> checksums, CopyAndWait(again, deadline));
  for (size_t i = 0; i < reads.size(); ++i) {
    if (checksums[i] == reads[i].checksum) continue;
    return DataLoss("the row of slot ", reads[i].slot.value, " of tensor \"", reads[i].tensor->name,
                    "\" of layer ", reads[i].tensor->layer.value,
                    " changed between the boundaries");
  }
  return absl::OkStatus();
}

}  // namespace eplb
