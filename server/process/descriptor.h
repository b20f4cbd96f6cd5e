// A file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace eplb {

class Descriptor {
 public:
  Descriptor() = default;  // holds no descriptor
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Descriptor() {
    if (value_ >= 0) (void)close(value_);
  }

  int get() const { return value_; }  // -1: none
  // The caller closes it from now on.
  int Release() { return std::exchange(value_, -1); }

 private:
  int value_ = -1;
};

}  // namespace eplb
