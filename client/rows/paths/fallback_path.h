// Changes to a second path once the first has failed several times, so that training keeps
// rebalancing: NCCL first, then host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

#include "client/rows/row_path.h"

namespace eplb {

struct FallbackPathParts {
  std::unique_ptr<RowPath> first;
  // Makes the second path into the staging of the first when it is needed, so that no memory is
  // held for an event that may never happen. The first path keeps the frames about no row.
  std::function<absl::StatusOr<std::unique_ptr<RowPath>>(std::span<std::byte> staging)> make_second;
  // Called once, with the last error of the first path on this rank. May be null.
  std::function<void(std::string_view line)> on_note;
};

// Posts in a row that fail on some rank before the second path is used for good.
inline constexpr uint64_t kMaxFirstWayFailures = 3;

// If the second path cannot be made, the post is refused, and the next post tries again.
//
// All ranks change at the same post: a post succeeds on all of them or is aborted on all of them,
// and post ids, which rise by one, are equal on all. A rank that could not post with the others may
// change one post earlier; way() keeps its rows and theirs apart until the others have followed.
std::unique_ptr<RowPath> MakeFallbackPath(FallbackPathParts parts);

}  // namespace eplb
