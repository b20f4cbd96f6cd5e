#include "client/migration/bounce_path.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/migration/row_message.h"
#include "client/migration/staging.h"
#include "cuda/checksum.h"

namespace eplb {

namespace {

// A row's way between device and host: both ends are summed and compared.
struct Hop {
  std::span<const std::byte> device;
  std::span<const std::byte> host;
  std::string name;  // "row 3 to rank 1"
};

class BouncePath : public RowPath {
 public:
  // pin: of the host path's staging.
  BouncePath(std::unique_ptr<RowPath> host, std::unique_ptr<cuda::RowQueue> queue,
             cuda::RowBuffer staging, cuda::RowBuffer pin)
      : host_(std::move(host)),
        pin_(std::move(pin)),
        queue_(std::move(queue)),
        staging_(std::move(staging)) {}

  std::string_view name() const override { return host_->name(); }
  std::span<std::byte> staging() override { return staging_.bytes; }

  absl::Status Open(const RowMoves& moves, TransferLedger& ledger, LinkSet& links) override {
    EPLB_RETURN_IF_ERROR(host_->Open(moves, ledger, links));
    EPLB_RETURN_IF_ERROR(queue_->Follow(moves.stream));
    ledger_ = &ledger;
    receives_ = moves.receives;
    return StartDown();
  }

  absl::StatusOr<bool> Advance() override {
    if (phase_ == Phase::kUp) return FinishHops(Phase::kDone);
    bool is_down = false;
    if (phase_ == Phase::kDown) {
      EPLB_ASSIGN_OR_RETURN(is_down, FinishHops(Phase::kAcross));
      if (!is_down) return false;
    }
    EPLB_ASSIGN_OR_RETURN(const bool moved, host_->Advance());
    // The last row may have come while ours went down.
    if (phase_ == Phase::kAcross && ledger_->complete()) {
      EPLB_RETURN_IF_ERROR(StartUp());
      return true;
    }
    return moved || is_down;
  }

  bool busy() const override { return phase_ != Phase::kAcross && phase_ != Phase::kDone; }

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink& link,
                                             const RowMessage& frame) override {
    return host_->Place(link, frame);
  }
  absl::Status Take(const PeerLink& link, const RowMessage& frame) override {
    EPLB_RETURN_IF_ERROR(host_->Take(link, frame));
    // Nothing more may come: the rows go up before the post is done.
    if (phase_ == Phase::kAcross && ledger_->complete()) return StartUp();
    return absl::OkStatus();
  }

  absl::Status Close(bool done) override {
    if (!done) EPLB_RETURN_IF_ERROR(queue_->Drain(MonotonicNow() + kSettleTimeout));
    batch_.reset();
    hops_.clear();
    phase_ = Phase::kDone;
    return host_->Close(done);
  }

 private:
  enum class Phase { kDown, kAcross, kUp, kDone };

  // A row that goes to several ranks comes down once.
  absl::Status StartDown() {
    phase_ = Phase::kDown;
    struct Copied {
      size_t offset = 0;
      bool comes = false;
    };
    std::map<std::pair<const std::byte*, size_t>, Copied> rows;
    int64_t used = 0;
    for (const TransferLedger::Outgoing& outgoing : ledger_->outgoing()) {
      const std::span<const std::byte> row = outgoing.row.bytes;
      const Copied copied{.offset = static_cast<size_t>(used)};
      if (!rows.try_emplace({row.data(), row.size()}, copied).second) continue;
      used += RoundUpToStaging(static_cast<int64_t>(row.size()));
    }
    if (used > static_cast<int64_t>(sent_.bytes.size())) {
      EPLB_ASSIGN_OR_RETURN(sent_, queue_->AllocatePinned(used));
    }
    std::vector<cuda::RowCopy> down;
    for (TransferLedger::Outgoing& outgoing : ledger_->outgoing()) {
      RowSend& row = outgoing.row;
      Copied& copied = rows.at({row.bytes.data(), row.bytes.size()});
      const std::span<std::byte> copy = sent_.bytes.subspan(copied.offset, row.bytes.size());
      if (!std::exchange(copied.comes, true)) {
        down.push_back({.source = row.bytes.data(),
                        .destination = copy.data(),
                        .num_bytes = static_cast<int64_t>(copy.size())});
        hops_.push_back({.device = row.bytes,
                         .host = copy,
                         .name = absl::StrCat("row ", row.row, " to rank ", row.to.value)});
      }
      row.bytes = copy;  // what the host path reads
    }
    return RunHops(down, Phase::kAcross);
  }

  absl::Status StartUp() {
    phase_ = Phase::kUp;
    std::vector<cuda::RowCopy> up;
    for (const RowReceive& row : receives_) {
      const auto offset = static_cast<size_t>(row.staging_offset);
      const auto size = static_cast<size_t>(row.num_bytes);
      const std::span<const std::byte> arrived = host_->staging().subspan(offset, size);
      const std::span<std::byte> staged = staging_.bytes.subspan(offset, size);
      up.push_back(
          {.source = arrived.data(), .destination = staged.data(), .num_bytes = row.num_bytes});
      hops_.push_back({.device = staged,
                       .host = arrived,
                       .name = absl::StrCat("row ", row.row, " from rank ", row.from.value)});
    }
    return RunHops(up, Phase::kDone);
  }

  // The copies, and behind them the sums of the device's ends in one batch. Without rows the next
  // phase has come at once.
  absl::Status RunHops(std::span<const cuda::RowCopy> copies, Phase next) {
    if (hops_.empty()) {
      phase_ = next;
      return absl::OkStatus();
    }
    EPLB_RETURN_IF_ERROR(queue_->Transfer(copies).status());
    std::vector<cuda::RowCopy> reads;
    for (const Hop& hop : hops_) {
      reads.push_back(
          {.source = hop.device.data(), .num_bytes = static_cast<int64_t>(hop.device.size())});
    }
    EPLB_ASSIGN_OR_RETURN(batch_, queue_->Copy(reads));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> FinishHops(Phase next) {
    EPLB_ASSIGN_OR_RETURN(const bool ended, queue_->Ended(*batch_));
    if (!ended) return false;
    const std::vector<uint64_t> sums = queue_->TakeChecksums(*std::exchange(batch_, std::nullopt));
    for (size_t i = 0; i < hops_.size(); ++i) {
      if (cuda::ChecksumOnHost(hops_[i].host) == sums[i]) continue;
      return absl::DataLossError(absl::StrCat("post ", ledger_->post_id(), ": ", hops_[i].name,
                                              ": checksum differs between GPU and host"));
    }
    hops_.clear();
    phase_ = next;
    return true;
  }

  const std::unique_ptr<RowPath> host_;
  const cuda::RowBuffer pin_;  // goes before the memory
  const std::unique_ptr<cuda::RowQueue> queue_;
  const cuda::RowBuffer staging_;     // on the device; without owner, where another path has it
  cuda::RowBuffer sent_;              // pinned; as large as the largest post so far
  TransferLedger* ledger_ = nullptr;  // of the open post
  std::vector<RowReceive> receives_;
  std::vector<Hop> hops_;
  std::optional<int64_t> batch_;  // the sums of hops_
  Phase phase_ = Phase::kDone;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowPath>> MakeBouncePath(std::unique_ptr<RowPath> host,
                                                        std::unique_ptr<cuda::RowQueue> queue) {
  const auto num_bytes = static_cast<int64_t>(host->staging().size());
  EPLB_ASSIGN_OR_RETURN(cuda::RowBuffer staging, queue->Allocate(num_bytes));
  EPLB_ASSIGN_OR_RETURN(cuda::RowBuffer pin, queue->Pin(host->staging()));
  return std::make_unique<BouncePath>(std::move(host), std::move(queue), std::move(staging),
                                      std::move(pin));
}

absl::StatusOr<std::unique_ptr<RowPath>> MakeBouncePathInto(std::span<std::byte> staging,
                                                            std::unique_ptr<RowPath> host,
                                                            std::unique_ptr<cuda::RowQueue> queue) {
  EPLB_ASSIGN_OR_RETURN(cuda::RowBuffer pin, queue->Pin(host->staging()));
  return std::make_unique<BouncePath>(std::move(host), std::move(queue),
                                      cuda::RowBuffer{.owner = nullptr, .bytes = staging},
                                      std::move(pin));
}

namespace {

class FallbackPath : public RowPath {
 public:
  explicit FallbackPath(FallbackPathParts parts) : parts_(std::move(parts)) {}

  std::string_view name() const override { return path().name(); }
  std::string_view fallback_reason() const override { return fallback_reason_; }
  std::span<std::byte> staging() override { return parts_.first->staging(); }
  int32_t way() const override { return second_ == nullptr ? 0 : 1; }

  absl::Status Open(const RowMoves& moves, TransferLedger& ledger, LinkSet& links) override {
    if (opened_.has_value() && !aborted_) last_good_ = *opened_;
    const bool give_up = moves.post_id > last_good_ + kMaxFirstWayFailures;
    opened_ = moves.post_id;
    aborted_ = false;
    if (second_ == nullptr && give_up) EPLB_RETURN_IF_ERROR(FallBack());
    return Remember(path().Open(moves, ledger, links));
  }

  absl::StatusOr<bool> Advance() override {
    absl::StatusOr<bool> moved = path().Advance();
    (void)Remember(moved.status());
    return moved;
  }

  bool busy() const override { return path().busy(); }
  std::string Waiting() const override { return path().Waiting(); }

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink& link,
                                             const RowMessage& frame) override {
    return PathOf(frame).Place(link, frame);
  }
  absl::Status Take(const PeerLink& link, const RowMessage& frame) override {
    return Remember(PathOf(frame).Take(link, frame));
  }

  absl::Status Close(bool done) override {
    aborted_ = aborted_ || !done;
    return Remember(path().Close(done));
  }

  bool is_whole() const override { return path().is_whole(); }
  absl::Status DropShared() override { return path().DropShared(); }

 private:
  RowPath& path() const { return second_ == nullptr ? *parts_.first : *second_; }
  // A rank that has not changed yet may still send the id of a communicator.
  RowPath& PathOf(const RowMessage& frame) const {
    return frame.type == RowMessageType::kMeet ? *parts_.first : path();
  }

  absl::Status Remember(absl::Status status) {
    if (!status.ok() && second_ == nullptr) last_error_ = std::string(status.message());
    return status;
  }

  absl::Status FallBack() {
    EPLB_ASSIGN_OR_RETURN(second_, parts_.make_second(parts_.first->staging()));
    fallback_reason_ = absl::StrCat("transport ", std::string(parts_.first->name()),
                                    " was given up: ", kMaxFirstWayFailures,
                                    " migrations in a row failed, the last one with: ",
                                    last_error_.empty() ? "an error of another rank" : last_error_);
    if (parts_.on_note) {
      parts_.on_note(absl::StrCat("rows go by ", std::string(second_->name()),
                                  " from now on: ", fallback_reason_));
    }
    return absl::OkStatus();
  }

  const FallbackPathParts parts_;
  std::unique_ptr<RowPath> second_;  // once it is taken
  std::optional<uint64_t> opened_;   // the last post
  bool aborted_ = false;             // since then
  uint64_t last_good_ = 0;           // the last post that is known to have succeeded on all ranks
  std::string last_error_;
  std::string fallback_reason_;  // empty until the second way is taken
};

}  // namespace

std::unique_ptr<RowPath> MakeFallbackPath(FallbackPathParts parts) {
  return std::make_unique<FallbackPath>(std::move(parts));
}

}  // namespace eplb
