// The rank's side of a mailbox, without gRPC: takes what the runner sends and lets a test wait for
// it with a deadline.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"

#include "proto/wire/messages.h"
#include "server/core/core.h"
#include "server/runner/sessions.h"

namespace eplb {

class TestStream {
 public:
  static constexpr auto kDeadline = std::chrono::seconds(20);

  TestStream()
      : mailbox_(std::make_shared<Mailbox>(
            Mailbox::Callbacks{.wake = [this] { Drain(); }, .cancel = [this] { Cancel(); }})) {}

  const std::shared_ptr<Mailbox>& mailbox() const { return mailbox_; }

  // The next message of this kind; others before it are skipped.
  template <class Message>
  std::optional<Message> Wait() {
    std::unique_lock lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + kDeadline;
    for (;;) {
      while (next_ < received_.size()) {
        if (const auto* message = std::get_if<Message>(&received_[next_++])) return *message;
      }
      if (changed_.wait_until(lock, until) == std::cv_status::timeout) return std::nullopt;
    }
  }

  std::optional<absl::Status> WaitForClose() {
    std::unique_lock lock(mutex_);
    (void)changed_.wait_for(lock, kDeadline, [this] { return closed_.has_value(); });
    return closed_;
  }

  // How many of this type came.
  template <class Message>
  int64_t Count() {
    const std::lock_guard lock(mutex_);
    return std::count_if(received_.begin(), received_.end(), [](const auto& message) {
      return std::holds_alternative<Message>(message);
    });
  }

  bool cancelled() {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }

 private:
  void Drain() {
    const std::lock_guard lock(mutex_);
    while (std::optional<wire::DownMessage> message = mailbox_->Take()) {
      received_.push_back(*std::move(message));
    }
    closed_ = mailbox_->closing();
    changed_.notify_all();
  }
  void Cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<wire::DownMessage> received_;
  size_t next_ = 0;
  std::optional<absl::Status> closed_;
  bool cancelled_ = false;
  const std::shared_ptr<Mailbox> mailbox_;
};

// A job of 2 ranks with one GPU each: 1 layer, 4 experts, 4 slots.
inline constexpr TopologyOptions kSmallShape = {
    .num_layers = 1, .num_experts = 4, .num_slots = 4, .num_gpus = 2};
inline constexpr int32_t kReportEvery = 10;

inline wire::Hello HelloOf(int32_t rank, uint64_t nonce) {
  wire::Hello hello;
  hello.job = "job";
  hello.run_id = "first";
  hello.nonce = nonce;
  hello.rank = rank;
  hello.world_size = 2;
  hello.gpu = rank;
  hello.shape = kSmallShape;
  hello.running_digest = DigestOf(Placement::Static(*Topology::Make(kSmallShape)));
  hello.vote_every = 8;
  hello.report_every = kReportEvery;
  hello.weight_bytes = 1000;
  hello.state_bytes = 6000;
  hello.staging_rows = 8;
  return hello;
}

// Experts 0 and 1, both on GPU 0 at first, get nearly all tokens.
inline wire::LoadReport ReportOf(int64_t first_step) {
  wire::LoadReport report;
  report.first_step = first_step;
  report.last_step = first_step + kReportEvery - 1;
  report.counts = LoadMatrix(1, 4);
  report.counts << 1000, 900, 10, 20;
  return report;
}

}  // namespace eplb
