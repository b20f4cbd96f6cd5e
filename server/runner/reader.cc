#include "server/runner/reader.h"

#include <utility>

namespace eplb {

Reader::Reader() : thread_([this] { Loop(); }) {}

Reader::~Reader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

bool Reader::Post(std::function<void()> question) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMaxWaiting) return false;
    waiting_.push_back(std::move(question));
  }
  changed_.notify_one();
  return true;
}

void Reader::Loop() {
  for (;;) {
    std::function<void()> question;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      question = std::move(waiting_.front());
      waiting_.pop_front();
    }
    question();
  }
}

}  // namespace eplb
