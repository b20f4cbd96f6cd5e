// Memory of a row queue's device that a test reads and writes from the host, whether or not the
// host can touch it.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

#include "cuda/row_queue.h"
#include "tests/cuda/gpu_is_required.h"

namespace eplb {

// Null where there is no such device.
using MakeQueue = std::unique_ptr<cuda::RowQueue> (*)();

// In a fixture's SetUp: skips without the device, or fails where there must be one. A null `make`
// stands for the host.
inline void SkipWithout(MakeQueue make) {
  if (make == nullptr || make() != nullptr) return;
  ASSERT_FALSE(cuda::testing::GpuIsRequired()) << "EPLB_REQUIRE_GPU=1: there is no usable device";
  GTEST_SKIP() << "there is no usable device";
}

class QueueMemory {
 public:
  // null: host memory, which is touched directly, so that sanitizers see every access.
  explicit QueueMemory(MakeQueue make = nullptr) : queue_(make == nullptr ? nullptr : make()) {}

  // These bytes there, for the life of this object.
  std::span<std::byte> Put(std::vector<std::byte> bytes) {
    if (queue_ == nullptr) return host_.emplace_back(std::move(bytes));
    auto buffer = queue_->Allocate(static_cast<int64_t>(bytes.size()));
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    device_.push_back(*std::move(buffer));
    Write(device_.back().bytes, bytes);
    return device_.back().bytes;
  }

  // `to` need not be of Put. It is written when this returns.
  void Write(std::span<std::byte> to, std::span<const std::byte> from) { Copy(to, from); }
  void Fill(std::span<std::byte> to, std::byte value) {
    if (queue_ != nullptr) return Copy(to, std::vector<std::byte>(to.size(), value));
    if (!to.empty()) std::memset(to.data(), std::to_integer<int>(value), to.size());
  }

  // After everything that the default stream holds.
  std::vector<std::byte> Read(std::span<const std::byte> from) {
    std::vector<std::byte> bytes(from.size());
    Copy(bytes, from);
    return bytes;
  }
  bool Holds(std::span<const std::byte> there, std::span<const std::byte> expected) {
    if (there.size() != expected.size()) return false;
    if (there.empty()) return true;
    if (queue_ != nullptr) {
      return std::memcmp(Read(there).data(), expected.data(), expected.size()) == 0;
    }
    return std::memcmp(there.data(), expected.data(), expected.size()) == 0;
  }

 private:
  void Copy(std::span<std::byte> to, std::span<const std::byte> from) {
    if (to.empty()) return;
    if (queue_ == nullptr) {
      std::memcpy(to.data(), from.data(), to.size());
      return;
    }
    const absl::Status followed = queue_->Follow(nullptr);
    ASSERT_TRUE(followed.ok()) << followed;
    const cuda::RowCopy row{from.data(), to.data(), static_cast<int64_t>(to.size())};
    const auto batch = queue_->Transfer({&row, 1});
    ASSERT_TRUE(batch.ok()) << batch.status();
    for (const absl::Time limit = absl::Now() + absl::Minutes(1);;) {
      const auto ended = queue_->Ended(*batch);
      ASSERT_TRUE(ended.ok()) << ended.status();
      if (*ended) return;
      ASSERT_LT(absl::Now(), limit) << "a copy does not end";
    }
  }

  std::unique_ptr<cuda::RowQueue> queue_;  // goes after the memory that it allocated
  std::list<std::vector<std::byte>> host_;
  std::list<cuda::RowBuffer> device_;
};

}  // namespace eplb
