// Rows through NCCL: NVLink inside a host, RDMA between hosts. Rounds of at most one send and one
// receive in a group, on a communicator of our own and on the training thread only: a second NCCL
// stream beside the training's all-to-all deadlocks. A piece is announced on the connection
// (kComing) with its checksum. A receive begins only after the announcement of the agreed piece, so
// no kernel waits for a peer that does not come.
// Staging and packing buffers are registered with the communicator where all ranks can: NCCL then
// works in them itself. Where they are not, a piece of one row is sent from the row.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/rows/paths/nccl_settings.h"
#include "client/rows/row_message.h"
#include "client/rows/row_path.h"
#include "cuda/nccl_library.h"
#include "cuda/row_queue.h"
#include "placement/ids.h"

namespace eplb {

struct NcclPathParts {
  const cuda::NcclLibrary* library = nullptr;
  NcclSettings settings;          // with a piece_bytes
  std::optional<int32_t> device;  // made current while NCCL is called; absent: host memory
  RankId self;
  std::vector<RankId> ranks;  // ranks of the EP group, rising, with self
  std::unique_ptr<cuda::RowQueue> pack_queue = nullptr;
  std::unique_ptr<cuda::RowQueue> group_queue = nullptr;  // NCCL runs on its stream
  // Sums what was received: beside the groups, not between them.
  std::unique_ptr<cuda::RowQueue> check_queue = nullptr;
  int64_t staging_bytes = 0;  // to be allocated
  // Staging in memory that another path uses as well, in place of staging_bytes. Its owner is never
  // destroyed while a kernel may still write there.
  std::optional<cuda::RowBuffer> staging;
  bool is_staging_registrable = false;  // see NcclMemoryOptions
  // Members of `ranks` with which this path exchanges no rows, so that NCCL needs no connection.
  std::vector<RankId> without_rows;
  // Deadline of ncclCommAbort. After it the rank must not vote.
  absl::Duration abort_timeout = kSettleTimeout;
  std::function<void(std::string_view line)> on_note = {};  // why memory is not registered; once
};

// errors: InvalidArgument without one of the queues; ResourceExhausted when the device has no room
// for staging and buffers.
absl::StatusOr<std::unique_ptr<RowPath>> MakeNcclPath(NcclPathParts parts);

}  // namespace eplb
