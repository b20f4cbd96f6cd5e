// Rows of a GPU over the host path: down into pinned memory, across, and up again. Slower than
// every other way by the speed of PCIe, and there where no other is: between hosts without NCCL,
// and after NCCL failed.
#ifndef EPLB_CLIENT_MIGRATION_BOUNCE_PATH_H_
#define EPLB_CLIENT_MIGRATION_BOUNCE_PATH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

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

// Rows by a second way once the first has failed again and again, so that training keeps
// rebalancing: NCCL first, then through host memory.

struct FallbackPathParts {
  std::unique_ptr<RowPath> first;
  // Makes the second way into the staging of the first, when it is needed: its memory is not held
  // for an event that may never come. It uses no kMeet frames, which stay the first's.
  std::function<absl::StatusOr<std::unique_ptr<RowPath>>(std::span<std::byte> staging)> make_second;
  // Told once, with the last error of the first way on this rank. May be null.
  std::function<void(std::string_view line)> on_note;
};

// Posts in a row that did not succeed on all ranks before the second way is taken, for good.
inline constexpr uint64_t kMaxFirstWayFailures = 3;

// A second way that cannot be made refuses the post, and the next post tries again.
//
// All ranks change at the same post: posts that succeed do so on all of them, the others are
// aborted on all of them, and their ids, which rise by one, are equal everywhere. A rank that could
// not even post what the others did may change one post earlier; way() keeps its rows and theirs
// apart until the others have followed.
std::unique_ptr<RowPath> MakeFallbackPath(FallbackPathParts parts);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_BOUNCE_PATH_H_
