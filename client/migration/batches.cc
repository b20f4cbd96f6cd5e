#include "client/migration/batches.h"

#include "absl/time/clock.h"

#include "client/control/monotonic_clock.h"
#include "placement/status_macros.h"

namespace eplb {

absl::Status AwaitBatch(cuda::RowQueue& queue, int64_t batch, absl::Time deadline) {
  constexpr absl::Duration kBetweenLooks = absl::Microseconds(20);
  while (true) {
    EPLB_ASSIGN_OR_RETURN(const bool ended, queue.Ended(batch));
    if (ended) return absl::OkStatus();
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError("row copies have not ended in time");
    }
    absl::SleepFor(kBetweenLooks);
  }
}

}  // namespace eplb
