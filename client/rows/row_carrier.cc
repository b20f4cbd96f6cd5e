#include "client/rows/row_carrier.h"

#include <algorithm>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/row_message.h"

namespace eplb {

namespace {

// One Poll: short enough that a deadline is kept, long enough to cost nothing.
constexpr absl::Duration kPollWait = absl::Milliseconds(100);

absl::Status Interrupted() { return absl::CancelledError("moving rows was interrupted"); }

}  // namespace

absl::Status RowCarrier::AwaitUnlessInterrupted(int64_t batch, absl::Time deadline) {
  while (true) {
    const absl::Time look = std::min(deadline, MonotonicNow() + kPollWait);
    absl::Status ended = AwaitBatch(*queue_, batch, look);
    if (!absl::IsDeadlineExceeded(ended) || look == deadline) return ended;
    if (interrupted_) return Interrupted();
  }
}

absl::StatusOr<std::vector<uint64_t>> RowCarrier::AwaitLastBatch(absl::Time deadline) {
  if (!last_batch_.has_value()) return std::vector<uint64_t>();
  EPLB_RETURN_IF_ERROR(AwaitUnlessInterrupted(*last_batch_, deadline));
  return queue_->TakeChecksums(*std::exchange(last_batch_, std::nullopt));
}

absl::Status RowCarrier::CatchUp(void* stream, absl::Time deadline) {
  const absl::Time began = MonotonicNow();
  EPLB_RETURN_IF_ERROR(queue_->Follow(stream));
  EPLB_ASSIGN_OR_RETURN(const int64_t mark, queue_->Mark());
  absl::Status caught_up = AwaitUnlessInterrupted(mark, deadline);
  if (!absl::IsDeadlineExceeded(caught_up)) return caught_up;
  return DeadlineExceeded("the GPU is behind: the work before this boundary has not ended in ",
                          absl::FormatDuration(MonotonicNow() - began));
}

absl::Status RowCarrier::Prepare(RowMoves& moves) {
  const absl::Time began = MonotonicNow();
  const absl::Time limit = std::max(moves.deadline, moves.begin_by);
  EPLB_RETURN_IF_ERROR(AwaitLastBatch(limit).status());
  if (moves.begin_by <= began) return queue_->Follow(moves.stream);
  EPLB_RETURN_IF_ERROR(CatchUp(moves.stream, limit));
  moves.deadline += MonotonicNow() - began;
  return absl::OkStatus();
}

absl::StatusOr<Ticket> RowCarrier::Post(RowMoves moves) {
  if (absl::Status status = Prepare(moves); !status.ok()) {
    transport_->Refuse(moves.post_id);
    return status;
  }
  return transport_->Post(std::move(moves));
}

absl::StatusOr<Progress> RowCarrier::Await(Ticket ticket) {
  while (true) {
    EPLB_ASSIGN_OR_RETURN(const Progress progress, transport_->Poll(ticket, kPollWait));
    if (progress.done) return progress;
    if (interrupted_) return Interrupted();
  }
}

void RowCarrier::Settle() {
  last_batch_.reset();
  const bool ended = queue_->Drain(MonotonicNow() + kSettleTimeout).ok();
  may_vote_ = transport_->Abort().ok() && ended && may_vote_;
}

void RowCarrier::DropShared() { may_vote_ = transport_->DropShared().ok() && may_vote_; }

}  // namespace eplb
