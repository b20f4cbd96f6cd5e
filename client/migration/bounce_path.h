// Rows of a GPU over the host path: down into pinned memory, across, and up again. Slower than
// every other way by the speed of PCIe, and there where no other is: between hosts without NCCL,
// and after NCCL failed.
#ifndef EPLB_CLIENT_MIGRATION_BOUNCE_PATH_H_
#define EPLB_CLIENT_MIGRATION_BOUNCE_PATH_H_

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/statusor.h"

#include "client/migration/row_path.h"
#include "cuda/row_queue.h"

namespace eplb {

// host: over an arena in host memory. queue: of the device, where staging of the same size is
// allocated. What is sent comes down into pinned memory that grows to the largest post: at most the
// rows of this GPU's slots in the layers of a chunk. The host's arena is pinned. errors:
// ResourceExhausted; Internal from CUDA.
absl::StatusOr<std::unique_ptr<RowPath>> MakeBouncePath(std::unique_ptr<RowPath> host,
                                                        std::unique_ptr<cuda::RowQueue> queue);
// Into staging that is there already and outlives it. REQUIRES: as large as host's arena. errors:
// Internal from CUDA.
absl::StatusOr<std::unique_ptr<RowPath>> MakeBouncePathInto(std::span<std::byte> staging,
                                                            std::unique_ptr<RowPath> host,
                                                            std::unique_ptr<cuda::RowQueue> queue);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_BOUNCE_PATH_H_
