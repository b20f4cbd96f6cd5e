// Faults on real channels, scripted by a test.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tests/client/rows/forwarding.h"

namespace eplb {

// Returns the hook of a TestJob that gives rank `faulty` a T over its channel. more: arguments of
// T after the channel.
template <class T, class... More>
auto OnRank(int32_t faulty, More... more) {
  return [=](int32_t rank, auto inner) -> decltype(inner) {
    if (rank != faulty) return inner;
    return std::make_unique<T>(std::move(inner), more...);
  };
}

// Lets a test read and change a rank's values in a vote; an error ends the vote for this rank.
class FaultyControl final : public ForwardingControl {
 public:
  using Hook = std::function<absl::Status(std::vector<int64_t>& values)>;
  FaultyControl(std::unique_ptr<ControlChannel> inner, Hook hook)
      : ForwardingControl(std::move(inner)), hook_(std::move(hook)) {}

  absl::StatusOr<std::vector<int64_t>> AllReduceMin(std::span<const int64_t> values,
                                                    absl::Duration timeout) override {
    std::vector<int64_t> said(values.begin(), values.end());
    if (absl::Status status = hook_(said); !status.ok()) return status;
    return ForwardingControl::AllReduceMin(said, timeout);
  }

 private:
  const Hook hook_;
};

// A transport whose posts first_lossy..last_lossy end with damaged rows on this rank.
class LossyTransport final : public ForwardingTransport {
 public:
  explicit LossyTransport(std::unique_ptr<Transport> inner, int32_t first_lossy = 1,
                          int32_t last_lossy = std::numeric_limits<int32_t>::max())
      : ForwardingTransport(std::move(inner)), first_lossy_(first_lossy), last_lossy_(last_lossy) {}

  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    ++num_posts_;
    return ForwardingTransport::Post(std::move(moves));
  }
  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    // The others get their rows, so that only this rank has a reason to vote no.
    absl::StatusOr<Progress> progress = ForwardingTransport::Poll(ticket, max_wait);
    if (!progress.ok() || !progress->done) return progress;
    if (num_posts_ < first_lossy_ || num_posts_ > last_lossy_) return progress;
    return absl::DataLossError("row 0 from rank 0 has another checksum");
  }

 private:
  const int32_t first_lossy_;
  const int32_t last_lossy_;
  int32_t num_posts_ = 0;
};

// Sets `left` when its rank leaves the others, by a call or by its end.
class WatchedTransport final : public ForwardingTransport {
 public:
  WatchedTransport(std::unique_ptr<Transport> inner, std::atomic<bool>& left)
      : ForwardingTransport(std::move(inner)), left_(left) {}
  ~WatchedTransport() override { left_ = true; }
  void Leave() override {
    left_ = true;
    ForwardingTransport::Leave();
  }

 private:
  std::atomic<bool>& left_;
};

// A transport that shows only the first `num_bytes` bytes of its staging.
class NarrowTransport final : public ForwardingTransport {
 public:
  NarrowTransport(std::unique_ptr<Transport> inner, const std::atomic<size_t>& num_bytes)
      : ForwardingTransport(std::move(inner)), num_bytes_(num_bytes) {}
  std::span<std::byte> staging() override {
    return ForwardingTransport::staging().first(num_bytes_);
  }

 private:
  const std::atomic<size_t>& num_bytes_;
};

}  // namespace eplb
