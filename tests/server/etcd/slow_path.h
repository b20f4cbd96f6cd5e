// A path to etcd whose packets arrive late, for the tests of one binary.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace eplb::etcd {

// Forwards connections to a port of 127.0.0.1. Bytes arrive half of the delay later in each
// direction, so a call takes one delay and a call over a new connection takes two.
class SlowPath {
 public:
  explicit SlowPath(int port);
  ~SlowPath();
  SlowPath(const SlowPath&) = delete;
  SlowPath& operator=(const SlowPath&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  void SetDelay(absl::Duration delay) { delay_ms_ = absl::ToInt64Milliseconds(delay); }

 private:
  void Accept();
  void Forward(int from, int to);

  const int port_;
  int listener_ = -1;
  std::string endpoint_;
  std::atomic<int64_t> delay_ms_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread acceptor_;
  std::mutex mutex_;                  // guards what follows
  std::vector<int> sockets_;          // closed by the destructor
  std::vector<std::thread> threads_;  // two of each connection
};

}  // namespace eplb::etcd
