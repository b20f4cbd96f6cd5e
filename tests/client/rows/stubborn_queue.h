// A queue whose device is slow, fails or damages what it copies.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/monotonic_clock.h"
#include "client/rows/transport.h"
#include "cuda/row_queue.h"
#include "tests/client/rows/forwarding.h"

namespace eplb {

struct Stubbornness {
  int32_t looks_per_transfer = 0;  // calls of Ended before a transfer has ended
  int32_t looks_per_copy = 0;
  bool fail_copies = false;
  bool fail_drain = false;
  bool fail_follow = false;
  int32_t pins_before_failure = std::numeric_limits<int32_t>::max();
  // Around each transfer, whose rows they may change.
  std::function<void(std::span<const cuda::RowCopy>)> before_transfer = {};
  std::function<void(std::span<const cuda::RowCopy>)> after_transfer = {};
  // Drain returns an error of this function.
  std::function<absl::Status(absl::Time deadline)> before_drain = {};
};

class StubbornQueue : public ForwardingQueue {
 public:
  explicit StubbornQueue(Stubbornness stubbornness,
                         std::unique_ptr<cuda::RowQueue> queue = cuda::MakeHostRowQueue())
      : ForwardingQueue(std::move(queue)), stubbornness_(std::move(stubbornness)) {}

  absl::StatusOr<cuda::RowBuffer> Allocate(int64_t num_bytes) override {
    ++num_reserved_;
    return ForwardingQueue::Allocate(num_bytes);
  }
  absl::StatusOr<cuda::RowBuffer> AllocatePinned(int64_t num_bytes) override {
    ++num_reserved_;
    return ForwardingQueue::AllocatePinned(num_bytes);
  }
  absl::StatusOr<cuda::RowBuffer> Pin(std::span<std::byte> memory) override {
    ++num_reserved_;
    if (num_pins_++ >= stubbornness_.pins_before_failure) {
      return absl::InternalError("the memory cannot be pinned");
    }
    return ForwardingQueue::Pin(memory);
  }
  absl::Status Follow(void* stream) override {
    if (stubbornness_.fail_follow) return absl::FailedPreconditionError("not such a stream");
    followed_.push_back(stream);
    return ForwardingQueue::Follow(stream);
  }
  absl::StatusOr<int64_t> Copy(Rows rows) override {
    if (stubbornness_.fail_copies) return absl::InternalError("the copy kernel failed");
    absl::StatusOr<int64_t> batch = ForwardingQueue::Copy(rows);
    if (batch.ok()) under_way_[*batch] = stubbornness_.looks_per_copy;
    copies_.push_back(rows.size());
    return batch;
  }
  absl::StatusOr<int64_t> CopyUnsummed(Rows rows) override {
    if (stubbornness_.fail_copies) return absl::InternalError("the copy kernel failed");
    return ForwardingQueue::CopyUnsummed(rows);
  }
  absl::StatusOr<int64_t> Transfer(Rows rows) override {
    if (stubbornness_.before_transfer) stubbornness_.before_transfer(rows);
    absl::StatusOr<int64_t> batch = ForwardingQueue::Transfer(rows);
    if (stubbornness_.after_transfer) stubbornness_.after_transfer(rows);
    if (batch.ok()) under_way_[*batch] = stubbornness_.looks_per_transfer;
    return batch;
  }
  absl::StatusOr<bool> Ended(int64_t batch) override {
    if (const auto found = under_way_.find(batch); found != under_way_.end()) {
      if (found->second-- > 0) return false;
      under_way_.erase(found);
    }
    return ForwardingQueue::Ended(batch);
  }
  absl::Status Drain(absl::Time deadline) override {
    if (stubbornness_.fail_drain) return absl::InternalError("the device is lost");
    if (stubbornness_.before_drain) {
      if (absl::Status status = stubbornness_.before_drain(deadline); !status.ok()) return status;
    }
    under_way_.clear();
    return ForwardingQueue::Drain(deadline);
  }

  const std::vector<void*>& followed() const { return followed_; }
  const std::vector<size_t>& copies() const { return copies_; }  // rows of each batch
  // Calls so far that allocate or pin.
  int32_t num_reserved() const { return num_reserved_; }
  // Transfers and copies that Ended has not reported.
  size_t num_under_way() const { return under_way_.size(); }

 private:
  const Stubbornness stubbornness_;
  int32_t num_pins_ = 0;
  int32_t num_reserved_ = 0;
  std::vector<void*> followed_;  // streams
  std::vector<size_t> copies_;
  std::map<int64_t, int32_t> under_way_;  // calls of Ended that are left, by batch
};

// Two queues of one device, which fails on the first and hangs on the second until Recover.
class HangingDevice {
 public:
  Stubbornness Failing() {
    Stubbornness fails;
    fails.before_drain = [this](absl::Time) {
      return hangs_ ? absl::InternalError("a copy failed") : absl::OkStatus();
    };
    return fails;
  }
  Stubbornness Silent() {
    Stubbornness is_silent;
    is_silent.before_drain = [this](absl::Time deadline) {
      deadlines_.push_back(deadline);
      return hangs_ ? absl::DeadlineExceededError("the device hangs") : absl::OkStatus();
    };
    return is_silent;
  }

  // Aborts twice: only the first call waits for the device.
  void ExpectOneWait(Transport& transport, absl::Duration settle_timeout) {
    const absl::Time before = MonotonicNow();
    for (int32_t turn = 0; turn < 2; ++turn) {
      EXPECT_EQ(transport.Abort(), absl::InternalError("a copy failed"));
    }
    ASSERT_EQ(deadlines_.size(), 2U);
    EXPECT_GE(deadlines_[0], before + settle_timeout);
    EXPECT_LE(deadlines_[1], MonotonicNow());
  }
  void Recover() { hangs_ = false; }

 private:
  bool hangs_ = true;
  std::vector<absl::Time> deadlines_;
};

}  // namespace eplb
