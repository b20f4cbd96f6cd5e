#include "client/rows/paths/peer_path.h"

#include <deque>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/paths/summed_path.h"

namespace eplb {
namespace {

// Limits of one batch. 32 MiB take 85 us over NVLink at 375 GB/s, far longer than the start of a
// batch, and a peer soon has the first batch to sum.
constexpr size_t kMaxBatchRows = 64;
constexpr int64_t kMaxBatchBytes = int64_t{32} << 20;
// Under way at a time, either way: the device has the next one when one ends.
constexpr size_t kMaxSending = 3;
constexpr size_t kMaxChecking = 3;
static_assert(kMaxSending + kMaxChecking < cuda::RowQueue::kMaxBatches);
static_assert((kMaxSending + kMaxChecking) * kMaxBatchRows < cuda::RowQueue::kMaxRows);

// Rows that are copied or summed together.
class Batch {
 public:
  bool TakesMore(int64_t num_bytes) const {
    return rows_.empty() ||
           (rows_.size() < kMaxBatchRows && num_bytes <= kMaxBatchBytes - num_bytes_);
  }
  void Add(const cuda::RowCopy& row) {
    rows_.push_back(row);
    num_bytes_ += row.num_bytes;
  }
  bool empty() const { return rows_.empty(); }
  std::span<const cuda::RowCopy> rows() const { return rows_; }

 private:
  std::vector<cuda::RowCopy> rows_;
  int64_t num_bytes_ = 0;
};

class PeerPath : public SummedPath {
 public:
  explicit PeerPath(PeerPathParts parts)
      : parts_(std::make_unique<PeerPathParts>(std::move(parts))),
        queue_(*parts_->queue),
        check_queue_(parts_->check_queue == nullptr ? queue_ : *parts_->check_queue) {}

  ~PeerPath() override {
    // Kernels may still use all of this, and to free it would wait for a device that hangs.
    if (!Drain().ok()) (void)parts_.release();
  }

  std::string_view name() const override { return "peer"; }
  std::span<std::byte> staging() override { return parts_->staging; }

  absl::Status Open(const RowMoves& moves, TransferLedger& ledger, LinkSet& links) override {
    for (const RowSend& send : moves.sends) {
      if (parts_->mapped.contains(send.to)) continue;
      return InvalidInput("row ", send.row, " to rank ", send.to.value,
                          ": its staging is not mapped");
    }
    // Sums need not follow: what lands was written by the peers, once this rank had posted.
    EPLB_RETURN_IF_ERROR(queue_.Follow(moves.stream));
    ledger_ = &ledger;
    links_ = &links;
    num_begun_ = 0;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance() override {
    EPLB_ASSIGN_OR_RETURN(const bool started, StartSends());
    EPLB_ASSIGN_OR_RETURN(const bool sent, FinishSends());
    EPLB_ASSIGN_OR_RETURN(const bool checking, StartChecks());
    EPLB_ASSIGN_OR_RETURN(const bool checked, FinishChecks(check_queue_));
    return started || sent || checking || checked;
  }

  bool busy() const override { return !sending_.empty() || !checking_.empty(); }

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink&, const RowMessage& frame) override {
    if (frame.type != RowMessageType::kLanded || frame.bytes != frame.row_bytes) {
      return DataLoss("received a frame that the peer transport does not use");
    }
    return std::span<std::byte>();
  }

  absl::Status Close(bool done) override {
    absl::Status drained = done ? absl::OkStatus() : Drain();
    // Also where that failed: they point into a ledger that goes.
    sending_.clear();
    telling_.clear();
    arrived_.clear();
    checking_.clear();
    return drained;
  }

 private:
  struct Sending {
    std::vector<TransferLedger::Outgoing*> rows;
    int64_t batch = 0;
  };
  absl::Status Drain() { return DrainBoth(queue_, check_queue_, parts_->settle_timeout); }

  // The peer is in this post, and reads what it is told: LinkTransport flushes.
  bool MaySendTo(RankId peer) {
    const PeerLink& link = links_->Of(peer);
    return !link.gone() && link.posted == ledger_->post_id() && !link.has_output();
  }

  // The next rows, in the order of their rounds, whose peers take them: one that has not posted
  // holds up no other.
  absl::StatusOr<bool> StartSends() {
    bool moved = false;
    while (sending_.size() < kMaxSending) {
      Sending sending;
      Batch batch;
      const std::span<TransferLedger::Outgoing> all = ledger_->outgoing();
      while (num_begun_ < all.size() && all[num_begun_].announced) ++num_begun_;
      for (TransferLedger::Outgoing& outgoing : all.subspan(num_begun_)) {
        const RowSend& row = outgoing.row;
        const auto num_bytes = static_cast<int64_t>(row.bytes.size());
        if (outgoing.announced || outgoing.done || !MaySendTo(row.to)) continue;
        if (!batch.TakesMore(num_bytes)) break;
        batch.Add({.source = row.bytes.data(),
                   .destination = parts_->mapped.at(row.to).data() + row.staging_offset,
                   .num_bytes = num_bytes});
        sending.rows.push_back(&outgoing);
      }
      if (batch.empty()) break;
      for (TransferLedger::Outgoing* const outgoing : sending.rows) {
        ledger_->NoteBegun(outgoing->row.round);
        outgoing->announced = true;
      }
      EPLB_ASSIGN_OR_RETURN(sending.batch, queue_.Copy(batch.rows()));
      sending_.push_back(std::move(sending));
      moved = true;
    }
    return moved;
  }

  // Announces rows that are in the receivers' staging. A send ends once its announcement has left,
  // because nothing is sent after the post.
  absl::StatusOr<bool> FinishSends() {
    bool moved = FinishTold();
    while (!sending_.empty()) {
      const Sending& sending = sending_.front();
      EPLB_ASSIGN_OR_RETURN(const bool ended, queue_.Ended(sending.batch));
      if (!ended) break;
      const std::vector<uint64_t> checksums = queue_.TakeChecksums(sending.batch);
      for (size_t i = 0; i < sending.rows.size(); ++i) Announce(*sending.rows[i], checksums[i]);
      for (const TransferLedger::Outgoing* const outgoing : sending.rows) {
        links_->Of(outgoing->row.to).Flush();
      }
      telling_.insert(telling_.end(), sending.rows.begin(), sending.rows.end());
      sending_.pop_front();
      // Now and not at the next turn: a peer that has all it needs may be gone by then.
      (void)FinishTold();
      moved = true;
    }
    return moved;
  }

  bool FinishTold() {
    const size_t before = telling_.size();
    std::erase_if(telling_, [this](TransferLedger::Outgoing* outgoing) {
      const PeerLink& link = links_->Of(outgoing->row.to);
      if (link.has_output()) return false;  // LinkTransport flushes
      if (!link.gone() && link.has_sent_all()) ledger_->FinishSend(*outgoing);
      return true;
    });
    return telling_.size() < before;
  }

  void Announce(TransferLedger::Outgoing& outgoing, uint64_t checksum) {
    const RowSend& row = outgoing.row;
    const auto num_bytes = static_cast<int64_t>(row.bytes.size());
    ledger_->NoteSent(outgoing, /*offset=*/0, num_bytes, checksum);
    links_->Of(row.to).Queue(
        ledger_->FrameOf(RowMessageType::kLanded, row, /*offset=*/0, num_bytes, checksum));
  }

  absl::StatusOr<bool> StartChecks() {
    bool moved = false;
    while (!arrived_.empty() && checking_.size() < kMaxChecking) {
      Check check;
      Batch batch;
      while (!arrived_.empty()) {
        const RowReceive& row = IncomingOf(arrived_.front()).row;
        if (!batch.TakesMore(row.num_bytes)) break;
        batch.Add(
            {.source = parts_->staging.data() + row.staging_offset, .num_bytes = row.num_bytes});
        check.rows.push_back(arrived_.front());
        arrived_.pop_front();
      }
      EPLB_ASSIGN_OR_RETURN(check.batch, check_queue_.Copy(batch.rows()));
      checking_.push_back(std::move(check));
      moved = true;
    }
    return moved;
  }

  std::unique_ptr<PeerPathParts> parts_;
  cuda::RowQueue& queue_;
  cuda::RowQueue& check_queue_;
  size_t num_begun_ = 0;  // number of the ledger's sends that have begun
  std::deque<Sending> sending_;
  std::vector<TransferLedger::Outgoing*> telling_;  // there, and the peer is being told
};

}  // namespace

std::unique_ptr<RowPath> MakePeerPath(PeerPathParts parts) {
  return std::make_unique<PeerPath>(std::move(parts));
}

}  // namespace eplb
