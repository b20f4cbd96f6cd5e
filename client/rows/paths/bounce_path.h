// Rows of a GPU over host memory: down from the device, across, and up again. Slower than every
// other way by the speed of PCIe, and there where no other is: between hosts without NCCL, and
// after NCCL failed.
//
// A row goes across as soon as it is down and up as soon as it has arrived. On one host the copy
// engine writes it straight into the receiver's arena, a pinned memfd. To another host it goes
// through a ring of pinned pieces and a socket. The device sums each row at its source and in its
// staging: the sender's sum travels with the row, and the CPU sums nothing.
#ifndef EPLB_CLIENT_ROWS_PATHS_BOUNCE_PATH_H_
#define EPLB_CLIENT_ROWS_PATHS_BOUNCE_PATH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/control_channel.h"
#include "client/rows/row_message.h"
#include "client/rows/row_path.h"
#include "client/rows/staging.h"
#include "client/rows/transport.h"
#include "cuda/row_queue.h"

namespace eplb {

// What a rank holds for the life of the path, so that no step allocates. Members go in the reverse
// order.
struct BounceParts {
  StagingArena arena;  // where rows arrive in host memory
  // Both of one device, so that rows go down and up at once.
  std::unique_ptr<cuda::RowQueue> down;
  std::unique_ptr<cuda::RowQueue> up;
  cuda::RowBuffer pin;      // of the arena
  cuda::RowBuffer ring;     // pinned, 4 MiB
  cuda::RowBuffer staging;  // on the device, as large as the arena; without owner where it is lent
  // How long an abort or the end of the path waits for the device. After that an abort fails, and
  // what the device may still use is never freed.
  absl::Duration settle_timeout = kSettleTimeout;
};
// errors: ResourceExhausted; Internal from CUDA.
absl::StatusOr<BounceParts> ReserveBounce(int64_t staging_bytes,
                                          std::unique_ptr<cuda::RowQueue> down,
                                          std::unique_ptr<cuda::RowQueue> up);

// Collective: calls `all_gather` once, whatever happens. With options.use_shared_memory the arenas
// of one host are handed over, and each rank pins those of its peers: seconds where they are many
// gigabytes. Rows to a peer whose arena cannot be pinned go through the ring and are copied into it
// by the CPU; on_note is told. errors: as MakeHostTransport.
absl::StatusOr<std::unique_ptr<Transport>> MakeBounceTransport(const TransportOptions& options,
                                                               BounceParts parts,
                                                               const AllGather& all_gather);

// Over connections that are there already, which carry all bytes, and into staging that outlives
// it, for ever where its Close fails: the device may still write there. Pins as much host memory:
// seconds for many gigabytes. errors: as ReserveBounce.
absl::StatusOr<std::unique_ptr<RowPath>> MakeBouncePathInto(std::span<std::byte> staging,
                                                            std::unique_ptr<cuda::RowQueue> down,
                                                            std::unique_ptr<cuda::RowQueue> up);

// Rows by a second way once the first has failed again and again, so that training keeps
// rebalancing: NCCL first, then through host memory.

struct FallbackPathParts {
  std::unique_ptr<RowPath> first;
  // Makes the second way into the staging of the first, when it is needed: its memory is not held
  // for an event that may never come. Frames about no row stay the first's.
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

#endif  // EPLB_CLIENT_ROWS_PATHS_BOUNCE_PATH_H_
