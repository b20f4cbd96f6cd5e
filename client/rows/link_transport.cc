// A rank that posts tells all peers of the post (kPosted): rows may come and will come. The path
// then moves the bytes, and every piece is announced on the connection with its checksum.
#include "client/rows/link_transport.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/wait_check.h"
#include "client/rows/control/meeting.h"
#include "client/rows/row_message.h"
#include "client/rows/transfer_ledger.h"

namespace eplb {
namespace {

// Frames read from one peer before the others get their turn.
constexpr int32_t kFramesPerTurn = 8;
// Between two looks at what no connection will tell.
constexpr absl::Duration kBusyWait = absl::Microseconds(20);

class LinkTransport : public Transport {
 public:
  LinkTransport(RankId rank, int64_t max_row_bytes, std::vector<PeerLink> links,
                std::unique_ptr<RowPath> path)
      : rank_(rank),
        max_row_bytes_(max_row_bytes),
        owner_(getpid()),
        links_(std::move(links)),
        path_(std::move(path)) {}

  ~LinkTransport() override {
    if (getpid() == owner_) {
      links_.HangUp();
    } else {
      (void)path_.release();  // a child has no part in what the path shares with a device
    }
  }

  std::string_view name() const override { return path_->name(); }
  std::string_view fallback_reason() const override { return path_->fallback_reason(); }
  std::span<std::byte> staging() override { return path_->staging(); }

  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    EPLB_RETURN_IF_ERROR(CheckOwner());
    if (ledger_.has_value()) return FailedPrecondition("another post is open");
    if (absl::Status status = Open(moves); !status.ok()) {
      TellEnded(moves.post_id);  // it never begins here, so no peer may wait for this rank
      return status;
    }
    last_post_id_ = ledger_->post_id();
    opened_ = MonotonicNow();
    begin_by_ = moves.begin_by;
    clock_runs_ = false;
    error_ = absl::OkStatus();
    links_.Tell(ledger_->Peers(),
                {.type = RowMessageType::kPosted, .round = path_->way(), .post_id = last_post_id_});
    return ++ticket_;
  }

  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    EPLB_RETURN_IF_ERROR(CheckOwner());
    if (ticket != ticket_ || ticket == 0) {
      return InvalidInput("ticket ", ticket, " is not the last one");
    }
    if (!ledger_.has_value()) return last_progress_;
    if (!error_.ok()) return error_;
    absl::StatusOr<Progress> progress = Advance(max_wait);
    if (progress.ok() && progress->done) {
      if (absl::Status closed = path_->Close(/*done=*/true); !closed.ok()) progress = closed;
    }
    if (!progress.ok()) {
      error_ = progress.status();
    } else if (progress->done) {
      last_progress_ = *progress;
      ledger_.reset();
    }
    return progress;
  }

  void Refuse(uint64_t post_id) override {
    if (getpid() == owner_) TellEnded(post_id);
  }

  bool is_whole() const override { return path_->is_whole(); }
  absl::Status DropShared() override {
    return getpid() == owner_ ? path_->DropShared() : absl::OkStatus();
  }

  absl::Status Abort() override {
    if (getpid() != owner_) return absl::OkStatus();
    absl::Status closed = path_->Close(/*done=*/false);
    if (!ledger_.has_value()) return closed;
    // A row that is half sent continues from a copy, and the peer drops it. This rank's memory is
    // free.
    for (PeerLink& link : links_.all()) link.Detach();
    TellEnded(ledger_->post_id());
    for (PeerLink& link : links_.all()) link.DropPayload();
    last_progress_ = {};
    ledger_.reset();
    return closed;
  }

  void Leave() override {
    if (getpid() == owner_) TellEnded(std::numeric_limits<uint64_t>::max());
  }

 private:
  absl::Status CheckOwner() const {
    if (getpid() == owner_) return absl::OkStatus();
    return FailedPrecondition("the ", std::string(name()), " transport belongs to another process");
  }

  // errors: as Post, but for another post that is open.
  absl::Status Open(const RowMoves& moves) {
    EPLB_RETURN_IF_ERROR(
        CheckMoves(moves, {.self = rank_,
                           .max_row_bytes = max_row_bytes_,
                           .last_post_id = last_post_id_,
                           .posted_before = ticket_ > 0,
                           .staging_bytes = static_cast<int64_t>(path_->staging().size()),
                           .peer_staging_bytes = [this](RankId peer) {
                             const PeerLink* link = links_.Find(peer);
                             return link == nullptr ? int64_t{-1} : link->staging_bytes();
                           }}));
    // Late frames, and peers that have left; one that broke the rules is gone as well.
    (void)ReadLinks();
    TransferLedger ledger(moves);
    if (const std::string gone = links_.DescribeGone(ledger.Peers()); !gone.empty()) {
      return FailedPrecondition("post ", ledger.post_id(), ": ", gone);
    }
    ledger_.emplace(std::move(ledger));
    absl::Status opened = path_->Open(moves, *ledger_, links_);
    if (!opened.ok()) ledger_.reset();
    return opened;
  }

  // To all peers: what the ranks share, such as a communicator, comes to nothing also for those
  // that no row goes to.
  void TellEnded(uint64_t post_id) {
    links_.TellAll(
        {.type = RowMessageType::kEnded, .round = path_->is_whole() ? 0 : 1, .post_id = post_id});
  }

  // The deadline's clock runs once all peers are in this post and the path is up.
  void LookAtClock(absl::Time now) {
    if (clock_runs_) return;
    const std::vector<RankId> peers = ledger_->Peers();
    const bool begun = std::ranges::all_of(
        peers, [this](RankId peer) { return links_.Of(peer).posted >= ledger_->post_id(); });
    if (now < begin_by_ && !(begun && path_->Waiting().empty())) return;
    clock_runs_ = true;
    if (begin_by_ > opened_) ledger_->PutOffDeadline(now - opened_);
  }

  absl::Time deadline() const {
    return clock_runs_ ? ledger_->deadline() : std::max(begin_by_, ledger_->deadline());
  }

  absl::StatusOr<Progress> Advance(absl::Duration max_wait) {
    const absl::Time until = MonotonicNow() + max_wait;
    while (true) {
      // Messages of peers are read first, because nothing is sent to a peer that has ended the
      // post.
      EPLB_ASSIGN_OR_RETURN(const bool received, ReadLinks());
      EPLB_RETURN_IF_ERROR(CheckPeers());
      EPLB_ASSIGN_OR_RETURN(const bool moved, path_->Advance());
      if (ledger_->complete() && !path_->busy()) return ledger_->progress();
      const absl::Time now = MonotonicNow();
      LookAtClock(now);
      if (now >= deadline()) return DeadlineError();
      if (now >= until) return Unfinished();
      if (!moved && !received) EPLB_RETURN_IF_ERROR(Wait(now, std::min(until, deadline())));
    }
  }

  Progress Unfinished() const {
    Progress progress = ledger_->progress();
    progress.done = false;
    return progress;
  }

  absl::Status Wait(absl::Time now, absl::Time until) const {
    if (!path_->busy()) return links_.Wait(until);
    absl::SleepFor(std::min(kBusyWait, until - now));
    (void)CheckWait();  // a failed one ends the next vote
    return absl::OkStatus();
  }

  // Names the peers that owe rows, those that are not in this post, and what the path waits for.
  absl::Status DeadlineError() {
    std::string text(ledger_->DeadlineError().message());
    std::vector<RankId> absent;
    for (const RankId peer : ledger_->PeersLeft()) {
      if (links_.Of(peer).posted != ledger_->post_id()) absent.push_back(peer);
    }
    if (!absent.empty()) {
      absl::StrAppend(&text, "; ", NameRanks(absent),
                      absent.size() == 1 ? " has not begun it" : " have not begun it");
    }
    if (const std::string waiting = path_->Waiting(); !waiting.empty()) {
      absl::StrAppend(&text, "; ", waiting);
    }
    return DeadlineExceeded(text);
  }

  // Reads what has come on all connections. True when something came. errors: DataLoss, the first.
  absl::StatusOr<bool> ReadLinks() {
    bool moved = false;
    absl::Status first_error;
    for (PeerLink& link : links_.all()) {
      if (link.has_output()) link.Flush();
      for (int32_t frame = 0; frame < kFramesPerTurn && !link.gone(); ++frame) {
        const absl::StatusOr<bool> came = ReadFrame(link);
        first_error.Update(came.status());
        if (!came.ok() || !*came) break;
        moved = true;
      }
    }
    if (!first_error.ok()) return first_error;
    return moved;
  }

  // One frame, or the rest of its payload. errors: DataLoss, and the link is closed when the peer
  // does not keep the rules, for nothing after it can be trusted.
  absl::StatusOr<bool> ReadFrame(PeerLink& link) {
    if (!link.reading_payload()) {
      const std::optional<RowMessage> header = link.ReadHeader();
      if (!header.has_value()) return false;
      if (const absl::Status status = OnHeader(link, *header); !status.ok()) {
        link.Close(std::string(status.message()));
        return Blame(link.rank(), status.message());
      }
      if (!link.reading_payload()) {
        if (IsAboutRow(*header) && IsOurs(*header)) EPLB_RETURN_IF_ERROR(Take(link));
        return true;
      }
    }
    if (!link.ReadPayload()) return false;
    if (!link.payload_is_dropped()) EPLB_RETURN_IF_ERROR(Take(link));
    return true;
  }

  absl::Status Take(const PeerLink& link) {
    const absl::Status taken = path_->Take(link, link.header());
    return absl::IsDataLoss(taken) ? Blame(link.rank(), taken.message()) : taken;
  }

  bool IsOurs(const RowMessage& frame) const {
    return ledger_.has_value() && ledger_->post_id() == frame.post_id;
  }

  absl::Status OnHeader(PeerLink& link, const RowMessage& frame) {
    EPLB_RETURN_IF_ERROR(CheckFrame(frame));
    if (frame.type == RowMessageType::kPosted) {
      OnPosted(link, frame);
      link.posted = frame.post_id;
      link.posted_way = frame.round;
      return absl::OkStatus();
    }
    if (frame.type == RowMessageType::kEnded) {
      link.ended = frame.post_id;
      if (frame.round != 0) link.dropped_shared = frame.post_id;
      return absl::OkStatus();
    }
    std::span<std::byte> target;  // empty: a late row of a post that is over
    if (!IsAboutRow(frame)) {
      EPLB_ASSIGN_OR_RETURN(target, path_->Place(link, frame));
    } else if (IsOurs(frame)) {
      EPLB_RETURN_IF_ERROR(CheckPiece(link, frame));
      EPLB_ASSIGN_OR_RETURN(target, path_->Place(link, frame));
      ledger_->Find(link.rank(), frame.row)->announced += frame.bytes;
      ledger_->NoteBegun(frame.round);
    } else if (ticket_ == 0 || frame.post_id > last_post_id_) {
      return DataLoss("a row of post ", frame.post_id, " arrived before it was posted here");
    }
    if (HasPayload(frame)) link.ExpectPayload(static_cast<size_t>(frame.bytes), target);
    return absl::OkStatus();
  }

  // A peer that was in this post and begins another is through with it: it has all our rows.
  void OnPosted(PeerLink& link, const RowMessage& frame) {
    if (!ledger_.has_value() || link.posted != ledger_->post_id()) return;
    if (frame.post_id <= ledger_->post_id()) return;
    link.passed = ledger_->post_id();
    for (TransferLedger::Outgoing& outgoing : ledger_->outgoing()) {
      if (outgoing.row.to == link.rank()) ledger_->FinishSend(outgoing);
    }
  }

  // The piece must be the next one of a row that this peer owes, exactly as agreed.
  absl::Status CheckPiece(const PeerLink& link, const RowMessage& frame) {
    const TransferLedger::Incoming* incoming = ledger_->Find(link.rank(), frame.row);
    if (incoming == nullptr || incoming->done) {
      return DataLoss("row ", frame.row, " was not expected", incoming == nullptr ? "" : " twice");
    }
    const RowReceive& row = incoming->row;
    if (frame.row_bytes != row.num_bytes || frame.staging_offset != row.staging_offset ||
        frame.round != row.round) {
      return DataLoss("row ", frame.row, " has ", frame.row_bytes, " bytes at ",
                      frame.staging_offset, " in round ", frame.round, ", expected ", row.num_bytes,
                      " at ", row.staging_offset, " in round ", row.round);
    }
    if (frame.offset != incoming->announced || frame.bytes > row.num_bytes - frame.offset ||
        (frame.bytes == 0 && row.num_bytes > 0)) {
      return DataLoss("row ", frame.row, ": bytes ", frame.offset, "+", frame.bytes,
                      " arrived, expected from ", incoming->announced, " of ", row.num_bytes);
    }
    return absl::OkStatus();
  }

  absl::Status Blame(RankId peer, absl::string_view what) const {
    return DataLoss("post ", last_post_id_, ": rank ", peer.value, ": ", what);
  }

  // Peers that are still needed must be alive, and not past this post without having been in it.
  absl::Status CheckPeers() {
    const auto id = ledger_->post_id();
    const auto past = [id](const PeerLink& link) {
      return (link.ended.has_value() && *link.ended >= id) ||
             (link.posted.has_value() && *link.posted > id && link.passed != id);
    };
    const auto elsewhere = [id, way = path_->way()](const PeerLink& link) {
      return link.posted == id && link.posted_way != way;
    };
    const std::span<const PeerLink> all = links_.all();
    const bool suspicious = std::ranges::any_of(
        all, [&](const PeerLink& link) { return link.gone() || past(link) || elsewhere(link); });
    if (!suspicious) return absl::OkStatus();
    const std::vector<RankId> needed = ledger_->PeersNeeded();
    if (const std::string gone = links_.DescribeGone(needed); !gone.empty()) {
      return Unavailable("post ", id, ": ", gone);
    }
    for (const RankId peer : needed) {
      if (past(links_.Of(peer))) return Aborted("post ", id, ": rank ", peer.value, " ended it");
      if (elsewhere(links_.Of(peer))) {
        return Aborted("post ", id, ": rank ", peer.value, " uses another transport for its rows");
      }
    }
    return absl::OkStatus();
  }

  const RankId rank_;
  const int64_t max_row_bytes_;
  const pid_t owner_;
  LinkSet links_;
  std::unique_ptr<RowPath> path_;
  std::optional<TransferLedger> ledger_;  // ledger of the open post
  absl::Status error_;                    // error that Poll keeps returning
  Progress last_progress_;                // progress of the last ticket
  Ticket ticket_ = 0;
  uint64_t last_post_id_ = 0;
  absl::Time opened_ = absl::InfinitePast();  // start of the open post
  absl::Time begin_by_ = absl::InfinitePast();
  bool clock_runs_ = true;
};

}  // namespace

std::unique_ptr<Transport> MakeLinkTransport(RankId rank, int64_t max_row_bytes,
                                             std::vector<PeerLink> links,
                                             std::unique_ptr<RowPath> path) {
  return std::make_unique<LinkTransport>(rank, max_row_bytes, std::move(links), std::move(path));
}

}  // namespace eplb
