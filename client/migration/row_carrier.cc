#include "client/migration/row_carrier.h"

#include <utility>

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/migration/row_message.h"

namespace eplb {

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

}  // namespace eplb
