// Faults on real channels, scripted by a test.
#ifndef EPLB_TESTS_CLIENT_FAULTY_CHANNELS_H_
#define EPLB_TESTS_CLIENT_FAULTY_CHANNELS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "client/control/control_channel.h"
#include "client/migration/transport.h"

namespace eplb::testing {

// Lets a test see and change what a rank says in a vote; an error ends the vote for this rank.
class FaultyControl final : public ControlChannel {
 public:
  using Hook = std::function<absl::Status(std::vector<int64_t>& values)>;
  FaultyControl(std::unique_ptr<ControlChannel> inner, Hook hook)
      : inner_(std::move(inner)), hook_(std::move(hook)) {}

  RankId rank() const override { return inner_->rank(); }
  int32_t world_size() const override { return inner_->world_size(); }
  absl::StatusOr<std::vector<int64_t>> AllReduceMin(std::span<const int64_t> values,
                                                    absl::Duration timeout) override {
    std::vector<int64_t> said(values.begin(), values.end());
    if (absl::Status status = hook_(said); !status.ok()) return status;
    return inner_->AllReduceMin(said, timeout);
  }
  absl::Status Barrier(absl::Duration timeout) override { return inner_->Barrier(timeout); }

 private:
  std::unique_ptr<ControlChannel> inner_;
  Hook hook_;
};

// A transport whose rows never all arrive on this rank, from the given post on.
class LossyTransport final : public Transport {
 public:
  explicit LossyTransport(std::unique_ptr<Transport> inner, int32_t first_lossy = 1)
      : inner_(std::move(inner)), first_lossy_(first_lossy) {}

  std::string_view name() const override { return inner_->name(); }
  std::span<std::byte> staging() override { return inner_->staging(); }
  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    ++num_posts_;
    return inner_->Post(std::move(moves));
  }
  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    // The others get their rows, so that only this rank has a reason to vote no.
    absl::StatusOr<Progress> progress = inner_->Poll(ticket, max_wait);
    if (!progress.ok() || !progress->done || num_posts_ < first_lossy_) return progress;
    return absl::DataLossError("row 0 from rank 0 has another checksum");
  }
  absl::Status Abort() override { return inner_->Abort(); }
  void Leave() override { inner_->Leave(); }

 private:
  std::unique_ptr<Transport> inner_;
  const int32_t first_lossy_;
  int32_t num_posts_ = 0;
};

}  // namespace eplb::testing

#endif  // EPLB_TESTS_CLIENT_FAULTY_CHANNELS_H_
