// Staging memory that ranks of one host can share: a sealed memfd, handed over a unix socket.
#ifndef EPLB_CLIENT_MIGRATION_STAGING_ARENA_H_
#define EPLB_CLIENT_MIGRATION_STAGING_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/control/socket.h"

namespace eplb {

// A mapping of a memfd: our own arena, or a peer's that we write into. Page-aligned.
class StagingArena {
 public:
  StagingArena() = default;
  StagingArena(StagingArena&& other) noexcept;
  StagingArena& operator=(StagingArena&& other) noexcept;
  ~StagingArena();

  // All pages are allocated now, so that a full host is an error here and not a signal later. The
  // size is sealed: nobody can shrink the memory under another's hands. errors: InvalidArgument for
  // a negative size; ResourceExhausted, with what is needed and what is free.
  static absl::StatusOr<StagingArena> Make(int64_t bytes);
  // The peer's arena behind `fd`. errors: FailedPrecondition when it is not sealed or not of
  // `bytes`; ResourceExhausted when it cannot be mapped.
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
// errors: Unavailable, DeadlineExceeded, FailedPrecondition when no descriptor came with the byte.
absl::StatusOr<Fd> ReceiveDescriptor(int socket, absl::Time deadline);

// /proc/sys/kernel/random/boot_id: equal for processes of one running kernel; empty when unknown.
std::string BootId();

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_STAGING_ARENA_H_
