// Ranks as threads: rows are copied by the sender, announced in the receiver's inbox and checked by
// the receiver.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/control/meeting.h"
#include "client/rows/transfer_ledger.h"
#include "client/rows/transport.h"

namespace eplb {
namespace {

constexpr std::align_val_t kArenaAlignment{64};

struct AlignedDelete {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, kArenaAlignment); }
};

// A row that lies in the receiver's staging.
struct Landed {
  RankId from;
  uint64_t post_id = 0;
  int32_t row = 0;
  int64_t staging_offset = 0;
  int64_t num_bytes = 0;
  uint64_t checksum = 0;
};

struct RankState {
  std::unique_ptr<std::byte[], AlignedDelete> arena;  // lives until every transport is gone
  std::optional<uint64_t> open_post;                  // peers may write for it
  std::optional<uint64_t> ended_post;                 // aborted or done: the newest
  bool gone = false;
  std::deque<Landed> inbox;  // at most one entry per row of a post
};

// Everything but the arenas' bytes and the constants is guarded by `mutex`.
struct Shared {
  int32_t world_size = 0;
  int64_t staging_bytes = 0;
  InprocFaults faults;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<RankState> ranks;
};

class InprocTransport : public Transport {
 public:
  InprocTransport(std::shared_ptr<Shared> shared, RankId rank)
      : shared_(std::move(shared)), rank_(rank) {}

  ~InprocTransport() override {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    Own().gone = true;
    Own().open_post.reset();
    shared_->changed.notify_all();
  }

  std::string_view name() const override { return "inproc"; }

  std::span<std::byte> staging() override {
    return {shared_->ranks[rank_.value].arena.get(), static_cast<size_t>(shared_->staging_bytes)};
  }

  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    if (ledger_.has_value()) return absl::FailedPreconditionError("another post is open");
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    if (absl::Status status = CheckPost(moves); !status.ok()) {
      // Its peers must not wait for us.
      Own().ended_post = std::max(Own().ended_post.value_or(0), moves.post_id);
      shared_->changed.notify_all();
      return status;
    }
    TransferLedger ledger(moves);
    last_post_id_ = ledger.post_id();
    Own().open_post = last_post_id_;
    error_ = absl::OkStatus();
    ledger_.emplace(std::move(ledger));
    shared_->changed.notify_all();
    return ++ticket_;
  }

  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    if (ticket != ticket_ || ticket == 0) {
      return absl::InvalidArgumentError(absl::StrCat("ticket ", ticket, " is not the last one"));
    }
    if (!ledger_.has_value()) return last_progress_;
    if (!error_.ok()) return error_;
    absl::StatusOr<Progress> progress = Advance(max_wait);
    if (!progress.ok()) {
      error_ = progress.status();
    } else if (progress->done) {
      Close(*progress);
    }
    return progress;
  }

  void Refuse(uint64_t post_id) override {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    Own().ended_post = std::max(Own().ended_post.value_or(0), post_id);
    shared_->changed.notify_all();
  }

  absl::Status Abort() override {
    if (ledger_.has_value()) Close({});
    return absl::OkStatus();
  }

  void Leave() override {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    Own().ended_post = std::numeric_limits<uint64_t>::max();
    shared_->changed.notify_all();
  }

 private:
  // errors: as Post, but for another post that is open. REQUIRES: the lock.
  absl::Status CheckPost(const RowMoves& moves) const {
    EPLB_RETURN_IF_ERROR(CheckMoves(moves, {.self = rank_,
                                            .max_row_bytes = shared_->staging_bytes,
                                            .last_post_id = last_post_id_,
                                            .posted_before = ticket_ > 0,
                                            .staging_bytes = shared_->staging_bytes,
                                            .peer_staging_bytes = [this](RankId rank) {
                                              const bool known = rank.value >= 0 &&
                                                                 rank.value < shared_->world_size;
                                              return known ? shared_->staging_bytes : int64_t{-1};
                                            }}));
    const TransferLedger ledger(moves);
    if (const std::vector<RankId> gone = Gone(ledger.Peers()); !gone.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("post ", ledger.post_id(), ": ", NameRanks(gone), " is gone"));
    }
    return absl::OkStatus();
  }

  RankState& Own() { return shared_->ranks[rank_.value]; }

  absl::StatusOr<Progress> Advance(absl::Duration max_wait) {
    const absl::Time until = std::min(ledger_->deadline(), MonotonicNow() + max_wait);
    std::unique_lock<std::mutex> lock(shared_->mutex);
    while (true) {
      EPLB_ASSIGN_OR_RETURN(const bool moved, Turn(lock));
      if (ledger_->complete()) return ledger_->progress();
      const absl::Time now = MonotonicNow();
      if (now >= ledger_->deadline()) return ledger_->DeadlineError();
      if (now >= until) return ledger_->progress();
      if (moved) continue;
      // An hour at most, so that an infinite deadline stays inside the clock's range.
      shared_->changed.wait_for(lock,
                                absl::ToChronoNanoseconds(std::min(until - now, absl::Hours(1))));
    }
  }

  // Copies what has credit and checks what has landed; the lock is open meanwhile. True when
  // something moved.
  absl::StatusOr<bool> Turn(std::unique_lock<std::mutex>& lock) {
    bool moved = false;
    const auto ready = [this](RankId peer) {
      return shared_->ranks[peer.value].open_post == ledger_->post_id();
    };
    for (TransferLedger::Outgoing& outgoing : ledger_->CurrentRound(ready)) {
      if (outgoing.done || !ready(outgoing.row.to)) continue;
      lock.unlock();
      const Landed landed = Copy(outgoing.row);
      lock.lock();
      ledger_->NoteSent(outgoing, /*offset=*/0, landed.num_bytes, landed.checksum);
      shared_->ranks[outgoing.row.to.value].inbox.push_back(landed);
      ledger_->FinishSend(outgoing);
      moved = true;
    }
    while (!Own().inbox.empty()) {
      const Landed landed = Own().inbox.front();
      Own().inbox.pop_front();
      if (landed.post_id != ledger_->post_id()) continue;  // late, of a post that was aborted
      lock.unlock();
      const absl::Status checked = Check(landed);
      lock.lock();
      EPLB_RETURN_IF_ERROR(checked);
      moved = true;
    }
    if (moved) shared_->changed.notify_all();
    EPLB_RETURN_IF_ERROR(CheckPeers());
    return moved;
  }

  Landed Copy(const RowSend& send) {
    const std::span<std::byte> arena(shared_->ranks[send.to.value].arena.get(),
                                     static_cast<size_t>(shared_->staging_bytes));
    const std::span<std::byte> staged =
        arena.subspan(static_cast<size_t>(send.staging_offset), send.bytes.size());
    const uint64_t checksum = ledger_->ChecksumOnHost(send.round, send.bytes);
    if (!staged.empty()) std::memcpy(staged.data(), send.bytes.data(), staged.size());
    if (shared_->faults.after_copy) shared_->faults.after_copy(rank_, send.to, send.row, staged);
    return {.from = rank_,
            .post_id = ledger_->post_id(),
            .row = send.row,
            .staging_offset = send.staging_offset,
            .num_bytes = static_cast<int64_t>(send.bytes.size()),
            .checksum = checksum};
  }

  absl::Status Check(const Landed& landed) {
    const std::string where = absl::StrCat("post ", landed.post_id, ": row ", landed.row,
                                           " from rank ", landed.from.value);
    TransferLedger::Incoming* incoming = ledger_->Find(landed.from, landed.row);
    if (incoming == nullptr || incoming->done) {
      return absl::DataLossError(absl::StrCat(where, " was not expected"));
    }
    const RowReceive& row = incoming->row;
    if (row.num_bytes != landed.num_bytes || row.staging_offset != landed.staging_offset) {
      return absl::DataLossError(absl::StrCat(where, " has ", landed.num_bytes, " bytes at ",
                                              landed.staging_offset, ", expected ", row.num_bytes,
                                              " at ", row.staging_offset));
    }
    const std::span<const std::byte> staged = staging().subspan(
        static_cast<size_t>(row.staging_offset), static_cast<size_t>(row.num_bytes));
    if (ledger_->ChecksumOnHost(row.round, staged) != landed.checksum) {
      return absl::DataLossError(absl::StrCat(where, ": checksum differs"));
    }
    ledger_->AddReceived(*incoming, row.num_bytes);
    return absl::OkStatus();
  }

  // Peers that still matter must be alive and in this post, or not yet in it.
  absl::Status CheckPeers() {
    const std::vector<RankId> left = ledger_->PeersLeft();
    if (const std::vector<RankId> gone = Gone(left); !gone.empty()) {
      return absl::UnavailableError(absl::StrCat("post ", ledger_->post_id(), ": ", NameRanks(gone),
                                                 gone.size() == 1 ? " is gone" : " are gone"));
    }
    for (const RankId peer : left) {
      const RankState& state = shared_->ranks[peer.value];
      if (state.ended_post.has_value() && *state.ended_post >= ledger_->post_id()) {
        return absl::AbortedError(
            absl::StrCat("post ", ledger_->post_id(), ": rank ", peer.value, " ended it"));
      }
    }
    return absl::OkStatus();
  }

  std::vector<RankId> Gone(const std::vector<RankId>& among) const {
    std::vector<RankId> gone;
    for (const RankId rank : among) {
      if (shared_->ranks[rank.value].gone) gone.push_back(rank);
    }
    return gone;
  }

  void Close(Progress progress) {
    last_progress_ = std::move(progress);
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    Own().open_post.reset();
    Own().ended_post = ledger_->post_id();
    Own().inbox.clear();
    ledger_.reset();
    shared_->changed.notify_all();
  }

  const std::shared_ptr<Shared> shared_;
  const RankId rank_;
  std::optional<TransferLedger> ledger_;  // of the open post
  absl::Status error_;                    // that Poll keeps returning
  Progress last_progress_;                // of the last ticket
  Ticket ticket_ = 0;
  uint64_t last_post_id_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Transport>>> MakeInprocTransports(int32_t world_size,
                                                                             int64_t staging_bytes,
                                                                             InprocFaults faults) {
  if (world_size < 1 || staging_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("inproc transport: ", world_size, " ranks and ",
                                                   staging_bytes, " bytes of staging"));
  }
  auto shared = std::make_shared<Shared>();
  shared->world_size = world_size;
  shared->staging_bytes = staging_bytes;
  shared->faults = std::move(faults);
  shared->ranks.resize(world_size);
  for (RankState& state : shared->ranks) {
    const size_t bytes = std::max<size_t>(static_cast<size_t>(staging_bytes), 1);
    state.arena.reset(
        static_cast<std::byte*>(::operator new[](bytes, kArenaAlignment, std::nothrow)));
    if (state.arena == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("inproc transport: no memory for ", staging_bytes, " bytes of staging"));
    }
  }
  std::vector<std::unique_ptr<Transport>> transports;
  transports.reserve(static_cast<size_t>(world_size));
  for (int32_t r = 0; r < world_size; ++r) {
    transports.push_back(std::make_unique<InprocTransport>(shared, RankId{r}));
  }
  return transports;
}

}  // namespace eplb
