#include "tests/cuda/nccl_wait.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/time/clock.h"

#include "base/status_macros.h"

namespace eplb::cuda::testing {

absl::Status WaitUntilReady(NcclCommunicator& communicator, absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  for (;;) {
    EPLB_ASSIGN_OR_RETURN(const bool ready, communicator.Poll());
    if (ready) return absl::OkStatus();
    if (absl::Now() > deadline) return absl::DeadlineExceededError("still under way");
    absl::SleepFor(kPause);
  }
}

Bytes RowOf(int32_t from, int32_t to, int32_t number, size_t size) {
  std::mt19937_64 random(static_cast<uint64_t>((from * 1000 + to) * 1000 + number));
  Bytes row(size);
  for (size_t done = 0; done < size; done += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(row.data() + done, &word, std::min(sizeof(word), size - done));
  }
  return row;
}

}  // namespace eplb::cuda::testing
