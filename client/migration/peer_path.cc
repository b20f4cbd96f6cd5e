#include "client/migration/peer_path.h"

#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/migration/row_message.h"

namespace eplb {
namespace {

// Rows under way at a time, either way: enough to keep the copy engine busy, and with two batches a
// send far below what the queue holds.
constexpr size_t kMaxSending = 12;
constexpr size_t kMaxChecking = 12;
static_assert(2 * kMaxSending + kMaxChecking < cuda::RowQueue::kMaxBatches);

class PeerPath : public RowPath {
 public:
  explicit PeerPath(PeerPathParts parts) : parts_(std::move(parts)), queue_(*parts_.queue) {}

  std::string_view name() const override { return "peer"; }
  std::span<std::byte> staging() override { return parts_.staging; }

  absl::Status Open(const RowMoves& moves, TransferLedger& ledger, LinkSet& links) override {
    for (const RowSend& send : moves.sends) {
      if (parts_.mapped.contains(send.to)) continue;
      return absl::InvalidArgumentError(absl::StrCat("row ", send.row, " to rank ", send.to.value,
                                                     ": its staging is not mapped"));
    }
    EPLB_RETURN_IF_ERROR(queue_.Follow(moves.stream));
    ledger_ = &ledger;
    links_ = &links;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance() override {
    EPLB_ASSIGN_OR_RETURN(const bool started, StartSends());
    EPLB_ASSIGN_OR_RETURN(const bool sent, FinishSends());
    EPLB_ASSIGN_OR_RETURN(const bool checking, StartChecks());
    EPLB_ASSIGN_OR_RETURN(const bool checked, FinishChecks());
    return started || sent || checking || checked;
  }

  bool busy() const override { return !sending_.empty() || !checking_.empty(); }

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink&, const RowMessage& frame) override {
    if (frame.type != RowMessageType::kLanded || frame.bytes != frame.row_bytes) {
      return absl::DataLossError("received a frame that the peer transport does not use");
    }
    return std::span<std::byte>();
  }

  absl::Status Take(const PeerLink& link, const RowMessage& frame) override {
    landed_.push_back({.from = link.rank(), .row = frame.row, .checksum = frame.checksum});
    ledger_->Find(link.rank(), frame.row)->arrived = true;
    return absl::OkStatus();
  }

  absl::Status Close(bool done) override {
    if (!done) EPLB_RETURN_IF_ERROR(queue_.Drain(MonotonicNow() + kSettleTimeout));
    sending_.clear();
    landed_.clear();
    checking_.clear();
    return absl::OkStatus();
  }

 private:
  struct Sending {
    TransferLedger::Outgoing* outgoing;
    int64_t transfer;  // batches
    std::optional<int64_t> checksum;
  };
  struct Landed {
    RankId from;
    int32_t row = 0;
    uint64_t checksum = 0;
  };
  struct Check {
    Landed landed;
    int64_t batch = 0;
  };

  absl::StatusOr<bool> StartSends() {
    const auto ready = [this](RankId peer) {
      const PeerLink& link = links_->Of(peer);
      return !link.gone() && link.posted == ledger_->post_id();
    };
    bool moved = false;
    for (TransferLedger::Outgoing& outgoing : ledger_->CurrentRound(ready)) {
      if (sending_.size() >= kMaxSending) break;
      if (outgoing.announced || !ready(outgoing.row.to)) continue;
      // It does not read: no more announcements for now. LinkTransport flushes.
      if (links_->Of(outgoing.row.to).has_output()) continue;
      const RowSend& row = outgoing.row;
      const auto num_bytes = static_cast<int64_t>(row.bytes.size());
      const cuda::RowCopy read{.source = row.bytes.data(), .num_bytes = num_bytes};
      cuda::RowCopy write = read;
      write.destination = parts_.mapped.at(row.to).data() + row.staging_offset;
      EPLB_ASSIGN_OR_RETURN(const int64_t transfer, queue_.Transfer(std::span(&write, 1)));
      sending_.push_back({.outgoing = &outgoing, .transfer = transfer, .checksum = std::nullopt});
      EPLB_ASSIGN_OR_RETURN(sending_.back().checksum, queue_.Copy(std::span(&read, 1)));
      outgoing.announced = true;
      moved = true;
    }
    return moved;
  }

  // What lies in the receiver's staging is announced.
  absl::StatusOr<bool> FinishSends() {
    bool moved = false;
    while (!sending_.empty()) {
      const Sending& sending = sending_.front();
      EPLB_ASSIGN_OR_RETURN(const bool transferred, queue_.Ended(sending.transfer));
      EPLB_ASSIGN_OR_RETURN(const bool summed, queue_.Ended(*sending.checksum));
      if (!transferred || !summed) break;
      const RowSend& row = sending.outgoing->row;
      const auto num_bytes = static_cast<int64_t>(row.bytes.size());
      const uint64_t checksum = queue_.TakeChecksums(*sending.checksum).front();
      ledger_->NoteSent(*sending.outgoing, /*offset=*/0, num_bytes, checksum);
      PeerLink& link = links_->Of(row.to);
      link.Queue({.type = RowMessageType::kLanded,
                  .row = row.row,
                  .round = row.round,
                  .post_id = ledger_->post_id(),
                  .row_bytes = num_bytes,
                  .staging_offset = row.staging_offset,
                  .offset = 0,
                  .bytes = num_bytes,
                  .checksum = checksum});
      link.Flush();
      ledger_->FinishSend(*sending.outgoing);
      sending_.pop_front();
      moved = true;
    }
    return moved;
  }

  absl::StatusOr<bool> StartChecks() {
    bool moved = false;
    while (!landed_.empty() && checking_.size() < kMaxChecking) {
      const Landed& landed = landed_.front();
      const RowReceive& row = ledger_->Find(landed.from, landed.row)->row;
      const cuda::RowCopy read{.source = parts_.staging.data() + row.staging_offset,
                               .num_bytes = row.num_bytes};
      EPLB_ASSIGN_OR_RETURN(const int64_t batch, queue_.Copy(std::span(&read, 1)));
      checking_.push_back({.landed = landed, .batch = batch});
      landed_.pop_front();
      moved = true;
    }
    return moved;
  }

  absl::StatusOr<bool> FinishChecks() {
    bool moved = false;
    while (!checking_.empty()) {
      const Check& check = checking_.front();
      EPLB_ASSIGN_OR_RETURN(const bool ended, queue_.Ended(check.batch));
      if (!ended) break;
      const Landed landed = check.landed;
      const uint64_t checksum = queue_.TakeChecksums(check.batch).front();
      checking_.pop_front();
      if (checksum != landed.checksum) {
        return absl::DataLossError(absl::StrCat("post ", ledger_->post_id(), ": rank ",
                                                landed.from.value, ": row ", landed.row,
                                                ": checksum differs"));
      }
      TransferLedger::Incoming& incoming = *ledger_->Find(landed.from, landed.row);
      ledger_->AddReceived(incoming, incoming.row.num_bytes);
      moved = true;
    }
    return moved;
  }

  const PeerPathParts parts_;
  cuda::RowQueue& queue_;
  TransferLedger* ledger_ = nullptr;  // of the open post
  LinkSet* links_ = nullptr;
  std::deque<Sending> sending_;
  std::deque<Landed> landed_;  // announced, not yet being checked
  std::deque<Check> checking_;
};

}  // namespace

std::unique_ptr<RowPath> MakePeerPath(PeerPathParts parts) {
  return std::make_unique<PeerPath>(std::move(parts));
}

}  // namespace eplb
