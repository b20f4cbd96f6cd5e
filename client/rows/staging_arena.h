// Staging memory that ranks of one host can share: a sealed memfd, handed over a unix socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/rows/control/socket.h"

namespace eplb {

// A mapping of a memfd: this rank's arena, or a peer's into which it writes. Page-aligned.
class StagingArena {
 public:
  StagingArena() = default;
  StagingArena(StagingArena&& other) noexcept;
  StagingArena& operator=(StagingArena&& other) noexcept;
  ~StagingArena();

  // Allocates all pages now, so that a full host is an error here and not a signal later. The size
  // is sealed, so that no process can shrink memory that another one uses. errors: InvalidArgument
  // for a negative size; ResourceExhausted, with the bytes that are needed and those that are free.
  static absl::StatusOr<StagingArena> Make(int64_t bytes);
  // Maps a peer's arena. errors: FailedPrecondition if it is not sealed or has not `bytes`;
  // ResourceExhausted if it cannot be mapped.
  static absl::StatusOr<StagingArena> Map(Fd fd, int64_t bytes);

  bool mapped() const { return base_ != nullptr; }
  std::span<std::byte> bytes() const { return {base_, size_}; }
  int fd() const { return fd_.get(); }

 private:
  StagingArena(Fd fd, std::byte* base, size_t size)
      : fd_(std::move(fd)), base_(base), size_(size) {}

  Fd fd_;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
};

// Passes a descriptor over a connected unix socket, with one byte. errors: Unavailable.
absl::Status SendDescriptor(int socket, int descriptor);
// errors: Unavailable, DeadlineExceeded, FailedPrecondition if the byte has no descriptor.
absl::StatusOr<Fd> ReceiveDescriptor(int socket, absl::Time deadline);

}  // namespace eplb
