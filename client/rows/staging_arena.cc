// Allocates and maps sealed memfds, and hands their descriptors over.
#include "client/rows/staging_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/file_size_signal.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace eplb {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// Bytes of the mapping of an arena, which may be empty although a mapping may not.
size_t MappedBytes(int64_t bytes) { return static_cast<size_t>(std::max<int64_t>(bytes, 1)); }

// Returns MemAvailable of this host in bytes; no limit if the kernel does not report it.
int64_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (meminfo >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

absl::Status Exhausted(int64_t bytes, const std::string& why) {
  return ResourceExhausted("staging of ", bytes, " bytes cannot be allocated: ", why);
}

absl::StatusOr<std::byte*> MapFd(int fd, int64_t bytes) {
  void* base = mmap(nullptr, MappedBytes(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return Exhausted(bytes, absl::StrCat("mmap: ", ErrnoText(errno)));
  return static_cast<std::byte*>(base);
}

// One byte and a descriptor. No more than one byte, because frames follow it on the socket.
struct Letter {
  std::byte token{};
  iovec piece{};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};

  msghdr Message() {
    piece = {.iov_base = &token, .iov_len = 1};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    return message;
  }
};

}  // namespace

StagingArena::StagingArena(StagingArena&& other) noexcept
    : fd_(std::move(other.fd_)),
      base_(std::exchange(other.base_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

StagingArena& StagingArena::operator=(StagingArena&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

StagingArena::~StagingArena() {
  if (base_ != nullptr) (void)munmap(base_, MappedBytes(static_cast<int64_t>(size_)));
}

absl::StatusOr<StagingArena> StagingArena::Make(int64_t bytes) {
  if (bytes < 0) return InvalidInput("staging of ", bytes, " bytes");
  if (const int64_t available = AvailableBytes(); bytes > available) {
    return Exhausted(bytes, absl::StrCat("the host has ", available, " free"));
  }
  Fd fd(memfd_create("eplb-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Exhausted(bytes, absl::StrCat("memfd_create: ", ErrnoText(errno)));
  const auto length = static_cast<off_t>(MappedBytes(bytes));
  const WithoutFileSizeSignal guard;  // ulimit -f applies to a memfd, too
  if (ftruncate(fd.get(), length) != 0) {
    return Exhausted(bytes, absl::StrCat("ftruncate: ", ErrnoText(errno)));
  }
  int error = 0;
  do {
    error = posix_fallocate(fd.get(), 0, length);
  } while (error == EINTR);
  if (error != 0) return Exhausted(bytes, absl::StrCat("fallocate: ", ErrnoText(error)));
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return Exhausted(bytes, absl::StrCat("sealing: ", ErrnoText(errno)));
  }
  EPLB_ASSIGN_OR_RETURN(std::byte* const base, MapFd(fd.get(), bytes));
  return StagingArena(std::move(fd), base, static_cast<size_t>(bytes));
}

absl::StatusOr<StagingArena> StagingArena::Map(Fd fd, int64_t bytes) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0 || bytes < 0 ||
      info.st_size != static_cast<off_t>(MappedBytes(bytes))) {
    return FailedPrecondition("its staging is not of the ", bytes, " bytes it announced");
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return FailedPrecondition("its staging could shrink, it is not sealed");
  }
  EPLB_ASSIGN_OR_RETURN(std::byte* const base, MapFd(fd.get(), bytes));
  return StagingArena(Fd(), base, static_cast<size_t>(bytes));  // the mapping needs no descriptor
}

absl::Status SendDescriptor(int socket, int descriptor) {
  Letter letter;
  letter.token = std::byte{0x46};
  msghdr message = letter.Message();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == 1) return absl::OkStatus();
  return Unavailable("staging cannot be handed over: ", ErrnoText(errno));
}

absl::StatusOr<Fd> ReceiveDescriptor(int socket, absl::Time deadline) {
  Letter letter;
  while (true) {
    msghdr message = letter.Message();
    const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got == 1) {
      const cmsghdr* header = CMSG_FIRSTHDR(&message);
      if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
          header->cmsg_len != CMSG_LEN(sizeof(int))) {
        return FailedPrecondition("it handed no staging over");
      }
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
      return Fd(descriptor);
    }
    if (got == 0) return Unavailable("connection closed");
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return Unavailable("its staging did not arrive: ", ErrnoText(errno));
    }
    pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
    EPLB_ASSIGN_OR_RETURN(const int ready, PollUntil(std::span(&entry, 1), deadline));
    if (ready == 0) return DeadlineExceeded("its staging did not arrive before the deadline");
  }
}

}  // namespace eplb
