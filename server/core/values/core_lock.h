// The lock under which the core decides, given back while it computes.
#pragma once

#include <cstdint>

namespace eplb::core {

// Held by the caller of Core::Handle against those who read the core on other threads.
class CoreLock {
 public:
  virtual ~CoreLock() = default;
  virtual void Release() = 0;
  virtual void Take() = 0;
};

// Work on fewer cells takes microseconds, as releasing and taking the lock does.
inline constexpr int64_t kBriefCells = int64_t{1} << 17;

// Releases the core's lock during its lifetime, so that other threads can read the core. Code in
// this scope must not write the state. Scopes must not be nested.
class ReadersIn {
 public:
  explicit ReadersIn(CoreLock* lock) : lock_(lock) {
    if (lock_ != nullptr) lock_->Release();
  }
  // cells: cells of loads that the scope reads. The lock stays if they are fewer than kBriefCells.
  ReadersIn(CoreLock* lock, int64_t cells) : ReadersIn(cells < kBriefCells ? nullptr : lock) {}
  ~ReadersIn() {
    if (lock_ != nullptr) lock_->Take();
  }
  ReadersIn(const ReadersIn&) = delete;
  ReadersIn& operator=(const ReadersIn&) = delete;

 private:
  CoreLock* const lock_;
};

}  // namespace eplb::core
