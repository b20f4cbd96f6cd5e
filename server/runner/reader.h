// The thread that reads the store for questions, so that no thread of gRPC waits for a disk.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace eplb {

// One question after the other, in the order they came. threads: safe.
class Reader {
 public:
  static constexpr size_t kMaxWaiting = 256;

  Reader();
  // Answers what waits, then ends.
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // False when too much waits already: `question` will not be run.
  bool Post(std::function<void()> question);

 private:
  void Loop();

  std::mutex mutex_;  // guards what follows, but for the thread
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace eplb
