// The lock under which the core decides, given back while it computes.
#ifndef EPLB_SERVER_CORE_VALUES_CORE_LOCK_H_
#define EPLB_SERVER_CORE_VALUES_CORE_LOCK_H_

namespace eplb::core {

// Held by the caller of Core::Handle against those who read the core on other threads.
class CoreLock {
 public:
  virtual ~CoreLock() = default;
  virtual void Release() = 0;
  virtual void Take() = 0;
};

// Lets readers in for as long as it lives: what is computed meanwhile reads the state and changes
// nothing in it. Not one within another.
class ReadersIn {
 public:
  explicit ReadersIn(CoreLock* lock) : lock_(lock) {
    if (lock_ != nullptr) lock_->Release();
  }
  ~ReadersIn() {
    if (lock_ != nullptr) lock_->Take();
  }
  ReadersIn(const ReadersIn&) = delete;
  ReadersIn& operator=(const ReadersIn&) = delete;

 private:
  CoreLock* const lock_;
};

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_VALUES_CORE_LOCK_H_
