// A connection as cpp-httplib reads and writes it, with one deadline for the whole exchange.
#ifndef EPLB_SERVER_HTTP_DEADLINE_STREAM_H_
#define EPLB_SERVER_HTTP_DEADLINE_STREAM_H_

#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"

#include "server/runner/monotonic_clock.h"

namespace eplb {

// head: the request as it was read from the socket already. threads: one caller.
class DeadlineStream : public httplib::Stream {
 public:
  DeadlineStream(int descriptor, std::string head, absl::Time deadline)
      : descriptor_(descriptor), head_(std::move(head)), deadline_(deadline) {}

  bool is_readable() const override { return read_ < head_.size() || Wait(POLLIN); }
  bool is_writable() const override { return Wait(POLLOUT); }

  ssize_t read(char* out, size_t size) override {
    if (read_ < head_.size()) {
      const size_t taken = head_.copy(out, size, read_);
      read_ += taken;
      return static_cast<ssize_t>(taken);
    }
    return Wait(POLLIN) ? recv(descriptor_, out, size, MSG_DONTWAIT) : -1;
  }
  ssize_t write(const char* bytes, size_t size) override {
    return Wait(POLLOUT) ? send(descriptor_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
  }

  // Nothing is decided by addresses.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  socket_t socket() const override { return descriptor_; }

 private:
  bool Wait(int16_t events) const {
    const int64_t left = absl::ToInt64Milliseconds(deadline_ - MonotonicNow());
    pollfd one{.fd = descriptor_, .events = events, .revents = 0};
    return left > 0 && poll(&one, 1, static_cast<int>(std::min<int64_t>(left, 1 << 30))) > 0;
  }

  const int descriptor_;
  const std::string head_;
  size_t read_ = 0;
  const absl::Time deadline_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_HTTP_DEADLINE_STREAM_H_
