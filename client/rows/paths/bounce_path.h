// Rows of a GPU through host memory: from the device, to the peer's host memory, to its device.
// PCIe makes it slower than every other path. It works where no other does: between hosts without
// NCCL, and after NCCL failed.
//
// A row is sent as soon as it is in host memory, and copied up as soon as it has arrived. On one
// host the copy engine writes it directly into the receiver's arena, a pinned memfd. To another
// host it is sent through a ring of pinned pieces and a socket. The device sums each row at its
// source and in its staging. The sender's sum travels with the row, and the CPU sums nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/control_channel.h"
#include "client/rows/row_message.h"
#include "client/rows/row_path.h"
#include "client/rows/staging_arena.h"
#include "client/rows/transport.h"
#include "cuda/row_queue.h"

namespace eplb {

// Memory that a rank holds for the life of the path, so that no step allocates. Members are
// destroyed in reverse order.
struct BounceParts {
  StagingArena arena;  // host memory in which rows arrive
  // Two queues of one device, so that rows are copied down and up at the same time.
  std::unique_ptr<cuda::RowQueue> down;
  std::unique_ptr<cuda::RowQueue> up;
  cuda::RowBuffer pin;      // pins the arena
  cuda::RowBuffer ring;     // pinned, 4 MiB
  cuda::RowBuffer staging;  // on the device, as large as the arena; without owner if it is lent
  // Time that an abort or the end of the path waits for the device. After that an abort fails, and
  // memory that the device may still use is never freed.
  absl::Duration settle_timeout = kSettleTimeout;
};
// errors: ResourceExhausted; Internal from CUDA.
absl::StatusOr<BounceParts> ReserveBounce(int64_t staging_bytes,
                                          std::unique_ptr<cuda::RowQueue> down,
                                          std::unique_ptr<cuda::RowQueue> up);

// Collective: calls `all_gather` once in every case. With options.use_shared_memory the ranks of
// one host hand their arenas over and pin those of their peers, which takes seconds for many
// gigabytes. Rows to a peer whose arena cannot be pinned are sent through the ring, and the CPU
// copies them; on_note reports it. errors: see MakeHostTransport.
absl::StatusOr<std::unique_ptr<Transport>> MakeBounceTransport(const TransportOptions& options,
                                                               BounceParts parts,
                                                               const AllGather& all_gather);

// Makes a path over existing connections, which carry all bytes, into staging that outlives it. If
// its Close fails, the staging must live for ever, because the device may still write there. Pins
// as much host memory, which takes seconds for many gigabytes. errors: see ReserveBounce.
absl::StatusOr<std::unique_ptr<RowPath>> MakeBouncePathInto(std::span<std::byte> staging,
                                                            std::unique_ptr<cuda::RowQueue> down,
                                                            std::unique_ptr<cuda::RowQueue> up);

}  // namespace eplb
