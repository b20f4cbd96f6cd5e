#include "client/rows/paths/summed_path.h"

#include <utility>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"

namespace eplb {

absl::Status SummedPath::Take(const PeerLink& link, const RowMessage& frame) {
  if (frame.offset + frame.bytes < frame.row_bytes) return absl::OkStatus();
  arrived_.push_back({.from = link.rank(), .row = frame.row, .checksum = frame.checksum});
  IncomingOf(arrived_.back()).arrived = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> SummedPath::FinishChecks(cuda::RowQueue& queue) {
  bool moved = false;
  while (!checking_.empty()) {
    EPLB_ASSIGN_OR_RETURN(const bool ended, queue.Ended(checking_.front().batch));
    if (!ended) break;
    const Check check = std::move(checking_.front());
    checking_.pop_front();
    const std::vector<uint64_t> checksums = queue.TakeChecksums(check.batch);
    for (size_t i = 0; i < check.rows.size(); ++i) {
      const ArrivedRow& row = check.rows[i];
      if (checksums[i] != row.checksum) {
        return DataLoss("post ", ledger_->post_id(), ": rank ", row.from.value, ": row ", row.row,
                        ": checksum differs");
      }
      TransferLedger::Incoming& incoming = IncomingOf(row);
      ledger_->AddReceived(incoming, incoming.row.num_bytes);
    }
    moved = true;
  }
  return moved;
}

absl::Status SummedPath::DrainBoth(cuda::RowQueue& first, cuda::RowQueue& second,
                                   absl::Duration patience) {
  const absl::Time deadline = MonotonicNow() + (hangs_ ? absl::ZeroDuration() : patience);
  absl::Status drained = first.Drain(deadline);
  const absl::Status also = second.Drain(deadline);
  hangs_ = absl::IsDeadlineExceeded(drained) || absl::IsDeadlineExceeded(also);
  drained.Update(also);
  return drained;
}

}  // namespace eplb
