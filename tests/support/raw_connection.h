// Bytes straight into a TCP connection on this machine, for tests of what strangers may send.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>

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
  ~RawConnection() {
    if (descriptor_ >= 0) (void)close(descriptor_);
  }
  // Sends bytes; bytes that the other end no longer takes are lost.
  void Send(const std::string& bytes) {
    (void)send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Returns the bytes up to and including `end`; later bytes are kept for the next call.
  // Less when the other end closes, or after 20 s of silence.
  std::string ReadUntil(const std::string& end) {
    std::array<char, 4096> bytes{};
    size_t found = 0;
    ssize_t got = 0;
    while ((found = kept_.find(end)) == std::string::npos &&
           (got = recv(descriptor_, bytes.data(), bytes.size(), 0)) > 0) {
      kept_.append(bytes.data(), static_cast<size_t>(got));
    }
    const size_t size = found == std::string::npos ? kept_.size() : found + end.size();
    std::string text = kept_.substr(0, size);
    kept_.erase(0, size);
    return text;
  }
  // Returns the bytes until the other end closes, or until 20 s of silence.
  std::string ReadAll() {
    std::string text = std::exchange(kept_, "");
    std::array<char, 4096> bytes{};
    ssize_t got = 0;
    while ((got = recv(descriptor_, bytes.data(), bytes.size(), 0)) > 0) {
      text.append(bytes.data(), static_cast<size_t>(got));
    }
    closed_ = got == 0 || errno == ECONNRESET;
    return text;
  }
  // True when the other end has closed.
  bool ReadToTheEnd() {
    (void)ReadAll();
    return closed_;
  }

 private:
  int descriptor_;
  std::string kept_;
  bool closed_ = false;
};

}  // namespace eplb
