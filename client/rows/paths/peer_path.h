// Rows between GPUs of one host. A kernel reads each row once: it sums the bytes while it writes
// them into the peer's staging, which is mapped here (CUDA IPC), over NVLink where there is one.
// The peer sums what landed. The copy engine takes no part: it cannot sum, so every row would be
// read twice.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>

#include "absl/time/time.h"

#include "client/rows/row_message.h"
#include "client/rows/row_path.h"
#include "cuda/row_queue.h"
#include "placement/ids.h"

namespace eplb {

struct PeerPathParts {
  std::shared_ptr<void> owner;                    // owner of the memory behind the spans
  std::span<std::byte> staging;                   // this rank's
  std::map<RankId, std::span<std::byte>> mapped;  // the peers', here
  // The queues go first: their copies use the memory.
  std::unique_ptr<cuda::RowQueue> queue;  // queue of the sends
  // Queue for the sums of rows that arrived, so that sums and sends do not wait for each other.
  // Null: `queue`.
  std::unique_ptr<cuda::RowQueue> check_queue = nullptr;
  // How long an abort or the end of the path waits for the device. After that an abort fails, and
  // none of these parts is ever freed: kernels may still use them.
  absl::Duration settle_timeout = kSettleTimeout;
};

// Every rank that rows go to must be mapped. Rows are sent, and summed on arrival, in batches of at
// most 64 rows and, where they have several, 32 MiB; a row is announced when its batch has ended.
// So the peer sums one batch while the next one is on its way.
std::unique_ptr<RowPath> MakePeerPath(PeerPathParts parts);

}  // namespace eplb
