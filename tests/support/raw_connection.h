// Bytes straight into a TCP connection on this machine, for tests of what strangers may send.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/time/clock.h"

namespace eplb {

class RawConnection {
 public:
  explicit RawConnection(int port) : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    (void)setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  RawConnection(RawConnection&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), kept_(std::move(other.kept_)) {}
  RawConnection& operator=(RawConnection&&) = delete;
  ~RawConnection() { (void)close(descriptor_); }
  // Sends bytes; bytes that the other end no longer takes are lost.
  void Send(const std::string& bytes) {
    (void)send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Returns the next `size` bytes, less when the other end closes, or after 20 s of silence; so
  // does the next one.
  std::string Read(size_t size) {
    while (kept_.size() < size && Receive()) continue;
    return Take(size);
  }
  // Returns the bytes until the other end closes.
  std::string ReadAll() {
    while (Receive()) continue;
    return Take(std::string::npos);
  }
  // Waits until the other end has sent nothing for 100 ms, because the kernel's buffers are full.
  void WaitUntilFull() {
    int waiting = 0, before = -1;
    while (waiting != std::exchange(before, waiting)) {
      absl::SleepFor(absl::Milliseconds(100));
      ASSERT_EQ(ioctl(descriptor_, FIONREAD, &waiting), 0);
    }
  }
  // True when the other end has closed.
  bool ReadToTheEnd() {
    (void)ReadAll();
    return closed_;
  }

 private:
  // Keeps the next bytes. False when the other end has closed, or after 20 s of silence.
  bool Receive() {
    char bytes[4096];
    const ssize_t got = recv(descriptor_, bytes, sizeof(bytes), 0);
    closed_ = got == 0 || (got < 0 && errno == ECONNRESET);
    if (got > 0) kept_.append(bytes, static_cast<size_t>(got));
    return got > 0;
  }
  std::string Take(size_t size) {
    std::string text = kept_.substr(0, size);
    kept_.erase(0, size);
    return text;
  }

  int descriptor_;
  std::string kept_;
  bool closed_ = false;
};

}  // namespace eplb
