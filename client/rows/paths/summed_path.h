// A path whose device sums rows on arrival: the sums are compared with those of the sender's
// device, so that they cover the whole transfer.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"

#include "client/rows/row_path.h"
#include "cuda/row_queue.h"

namespace eplb {

// Threads: as RowPath.
class SummedPath : public RowPath {
 public:
  // A row has arrived with the frame about its last byte.
  absl::Status Take(const PeerLink& link, const RowMessage& frame) override;

 protected:
  struct ArrivedRow {
    RankId from;
    int32_t row = 0;
    uint64_t checksum = 0;  // at the sender
  };
  struct Check {
    std::vector<ArrivedRow> rows;
    int64_t batch = 0;  // its number in the queue that sums them
  };

  TransferLedger::Incoming& IncomingOf(const ArrivedRow& row) const {
    return *ledger_->Find(row.from, row.row);
  }
  // Tells the ledger of the rows of all checks that have ended. True if one has. errors: DataLoss
  // naming a row whose sums differ; those of the queue.
  absl::StatusOr<bool> FinishChecks(cuda::RowQueue& queue);
  // Ends both queues, even if one fails, because the other one's writes must not go on. A device
  // that did not answer the last time is not waited for again.
  absl::Status DrainBoth(cuda::RowQueue& first, cuda::RowQueue& second, absl::Duration patience);

  TransferLedger* ledger_ = nullptr;  // ledger of the open post
  LinkSet* links_ = nullptr;
  std::deque<ArrivedRow> arrived_;  // announced, in no check yet
  std::deque<Check> checking_;

 private:
  bool hangs_ = false;  // the device did not answer the last time
};

}  // namespace eplb
