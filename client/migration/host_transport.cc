// Rows between processes. The receiver gives credit (kPosted); the sender then either copies pieces
// into the receiver's mapped arena and announces them (kLanded), or sends them on the socket
// (kPiece), where the receiver reads them into its own staging at the place its own list says.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/control/meeting.h"
#include "client/control/monotonic_clock.h"
#include "client/migration/host_setup.h"
#include "client/migration/peer_link.h"
#include "client/migration/post_ledger.h"
#include "client/migration/transport.h"
#include "cuda/checksum.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

// Frames read from one peer before the others get their turn.
constexpr int32_t kFramesPerTurn = 8;

class HostTransport : public Transport {
 public:
  HostTransport(const HostTransportOptions& options, HostParts parts)
      : rank_(options.rank),
        max_row_bytes_(options.max_row_bytes),
        owner_(getpid()),
        arena_(std::move(parts.arena)),
        links_(std::move(parts.links)) {
    for (size_t i = 0; i < links_.size(); ++i) index_[links_[i].rank()] = i;
  }

  ~HostTransport() override {
    if (getpid() != owner_) return;
    for (PeerLink& link : links_) link.HangUp();  // also where a forked child holds descriptors
  }

  std::string_view name() const override { return "host"; }
  std::span<std::byte> staging() override { return arena_.bytes(); }

  absl::StatusOr<Ticket> Post(RowMoves moves) override {
    EPLB_RETURN_IF_ERROR(CheckOwner());
    if (ledger_.has_value()) return absl::FailedPreconditionError("another post is open");
    if (absl::Status status = CheckPost(moves); !status.ok()) {
      TellEnded(moves);
      return status;
    }
    PostLedger ledger(moves);
    last_post_id_ = ledger.post_id();
    error_ = absl::OkStatus();
    ledger_.emplace(std::move(ledger));
    for (const RankId source : ledger_->Sources()) {
      PeerLink& link = *LinkTo(source);
      link.Queue({.type = RowFrameType::kPosted, .post_id = last_post_id_});
      link.Flush();
    }
    return ++ticket_;
  }

  absl::StatusOr<Progress> Poll(Ticket ticket, absl::Duration max_wait) override {
    EPLB_RETURN_IF_ERROR(CheckOwner());
    if (ticket != ticket_ || ticket == 0) {
      return absl::InvalidArgumentError(absl::StrCat("ticket ", ticket, " is not the last one"));
    }
    if (!ledger_.has_value()) return last_progress_;
    if (!error_.ok()) return error_;
    absl::StatusOr<Progress> progress = Advance(max_wait);
    if (!progress.ok()) {
      error_ = progress.status();
    } else if (progress->done) {
      last_progress_ = *progress;
      ledger_.reset();
    }
    return progress;
  }

  void Abort() override {
    if (!ledger_.has_value() || getpid() != owner_) return;
    for (const RankId peer : ledger_->Peers()) {
      PeerLink& link = *LinkTo(peer);
      // What is half sent goes on from a copy and is dropped over there; our rows are free.
      link.Detach();
      link.Queue({.type = RowFrameType::kEnded, .post_id = ledger_->post_id()});
      link.Flush();
    }
    for (PeerLink& link : links_) link.DropPayload();
    last_progress_ = {};
    ledger_.reset();
  }

 private:
  absl::Status CheckOwner() const {
    if (getpid() == owner_) return absl::OkStatus();
    return absl::FailedPreconditionError("the host transport belongs to another process");
  }

  // errors: as Post, but for another post that is open.
  absl::Status CheckPost(const RowMoves& moves) {
    EPLB_RETURN_IF_ERROR(
        CheckMoves(moves, {.self = rank_,
                           .max_row_bytes = max_row_bytes_,
                           .last_post_id = last_post_id_,
                           .posted_before = ticket_ > 0,
                           .staging_bytes = static_cast<int64_t>(arena_.bytes().size()),
                           .peer_staging_bytes = [this](RankId peer) {
                             const PeerLink* link = LinkTo(peer);
                             return link == nullptr ? int64_t{-1} : link->staging_bytes();
                           }}));
    // Late frames, and peers that have left; one that broke the rules is gone as well.
    (void)ReadLinks();
    const PostLedger ledger(moves);
    if (const std::string gone = DescribeGone(ledger.Peers()); !gone.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("post ", ledger.post_id(), ": ", gone));
    }
    return absl::OkStatus();
  }

  // A post that was refused here never begins: its peers must not wait for us.
  void TellEnded(const RowMoves& moves) {
    std::set<RankId> peers;
    for (const RowSend& send : moves.sends) peers.insert(send.to);
    for (const RowReceive& receive : moves.receives) peers.insert(receive.from);
    for (const RankId peer : peers) {
      PeerLink* link = LinkTo(peer);
      if (link == nullptr || link->gone()) continue;
      link->Queue({.type = RowFrameType::kEnded, .post_id = moves.post_id});
      link->Flush();
    }
  }

  PeerLink* LinkTo(RankId peer) {
    const auto found = index_.find(peer);
    return found == index_.end() ? nullptr : &links_[found->second];
  }

  absl::StatusOr<Progress> Advance(absl::Duration max_wait) {
    const absl::Time until = std::min(ledger_->deadline(), MonotonicNow() + max_wait);
    while (true) {
      const bool sent = SendRows();
      EPLB_ASSIGN_OR_RETURN(const bool received, ReadLinks());
      if (ledger_->complete()) return ledger_->progress();
      EPLB_RETURN_IF_ERROR(CheckPeers());
      const absl::Time now = MonotonicNow();
      if (now >= ledger_->deadline()) return ledger_->DeadlineError();
      if (now >= until) return ledger_->progress();
      if (!sent && !received) EPLB_RETURN_IF_ERROR(Wait(until));
    }
  }

  absl::Status Wait(absl::Time until) {
    std::vector<pollfd> polled;
    for (const PeerLink& link : links_) {
      if (link.gone()) continue;
      const int events = link.has_output() ? POLLIN | POLLOUT : POLLIN;
      polled.push_back({.fd = link.fd(), .events = static_cast<int16_t>(events), .revents = 0});
    }
    return PollUntil(polled, until).status();
  }

  // One piece of every row of the round that has credit and room. True when something moved.
  bool SendRows() {
    bool moved = false;
    const auto ready = [this](RankId peer) {
      const PeerLink& link = *LinkTo(peer);
      return !link.gone() && link.posted == ledger_->post_id();
    };
    for (PostLedger::Outgoing& outgoing : ledger_->CurrentRound(ready)) {
      if (outgoing.done || !ready(outgoing.row.to)) continue;
      PeerLink& link = *LinkTo(outgoing.row.to);
      if (link.has_output()) link.Flush();
      if (link.has_output()) continue;
      const auto row_bytes = static_cast<int64_t>(outgoing.row.bytes.size());
      if (outgoing.sent == row_bytes && outgoing.announced) {
        ledger_->FinishSend(outgoing);
      } else {
        SendPiece(link, outgoing);
      }
      moved = true;
    }
    return moved;
  }

  void SendPiece(PeerLink& link, PostLedger::Outgoing& outgoing) {
    const RowSend& row = outgoing.row;
    const auto row_bytes = static_cast<int64_t>(row.bytes.size());
    const int64_t bytes = std::min(kPieceBytes, row_bytes - outgoing.sent);
    const std::span<const std::byte> piece =
        row.bytes.subspan(static_cast<size_t>(outgoing.sent), static_cast<size_t>(bytes));
    const RowFrame frame{
        .type = link.shares_memory() ? RowFrameType::kLanded : RowFrameType::kPiece,
        .row = row.row,
        .round = row.round,
        .post_id = ledger_->post_id(),
        .row_bytes = row_bytes,
        .staging_offset = row.staging_offset,
        .offset = outgoing.sent,
        .bytes = bytes,
        .checksum = cuda::ChecksumOnHost(piece)};
    if (link.shares_memory()) {
      if (!piece.empty()) {
        std::memcpy(link.arena().data() + row.staging_offset + outgoing.sent, piece.data(),
                    piece.size());
      }
      link.Queue(frame);
    } else {
      link.Queue(frame, piece);
    }
    link.Flush();
    outgoing.sent += bytes;
    outgoing.announced = true;
  }

  // Reads what has come on all connections. True when something came. errors: DataLoss, the first.
  absl::StatusOr<bool> ReadLinks() {
    bool moved = false;
    absl::Status first_error;
    for (PeerLink& link : links_) {
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
      const std::optional<RowFrame> header = link.ReadHeader();
      if (!header.has_value()) return false;
      if (const absl::Status status = OnHeader(link, *header); !status.ok()) {
        link.Close(std::string(status.message()));
        return Blame(link.rank(), status.message());
      }
      if (!link.reading_payload()) {
        if (CarriesRow(*header) && IsOurs(*header)) EPLB_RETURN_IF_ERROR(TakePiece(link));
        return true;
      }
    }
    if (!link.ReadPayload()) return false;
    if (!link.payload_is_dropped()) EPLB_RETURN_IF_ERROR(TakePiece(link));
    return true;
  }

  static bool CarriesRow(const RowFrame& frame) {
    return frame.type == RowFrameType::kPiece || frame.type == RowFrameType::kLanded;
  }

  bool IsOurs(const RowFrame& frame) const {
    return ledger_.has_value() && ledger_->post_id() == frame.post_id;
  }

  absl::Status OnHeader(PeerLink& link, const RowFrame& frame) {
    EPLB_RETURN_IF_ERROR(CheckFrame(frame));
    if (frame.type == RowFrameType::kPosted) {
      link.posted = frame.post_id;
      return absl::OkStatus();
    }
    if (frame.type == RowFrameType::kEnded) {
      link.ended = frame.post_id;
      return absl::OkStatus();
    }
    std::span<std::byte> target;  // empty: a late row of a post that is over
    if (IsOurs(frame)) {
      EPLB_RETURN_IF_ERROR(CheckPiece(link, frame));
      target = Place(*ledger_->Find(link.rank(), frame.row), frame);
    } else if (ticket_ == 0 || frame.post_id > last_post_id_) {
      return absl::DataLossError(
          absl::StrCat("a row of post ", frame.post_id, " came before it was posted here"));
    }
    if (frame.type == RowFrameType::kPiece) {
      link.ExpectPayload(static_cast<size_t>(frame.bytes), target);
    }
    return absl::OkStatus();
  }

  // The piece must be the next one of a row that this peer owes, exactly as agreed.
  absl::Status CheckPiece(const PeerLink& link, const RowFrame& frame) {
    const PostLedger::Incoming* incoming = ledger_->Find(link.rank(), frame.row);
    if (incoming == nullptr || incoming->done) {
      return absl::DataLossError(absl::StrCat("row ", frame.row, " was not expected",
                                              incoming == nullptr ? "" : " twice"));
    }
    const RowReceive& row = incoming->row;
    if (frame.row_bytes != row.num_bytes || frame.staging_offset != row.staging_offset ||
        frame.round != row.round) {
      return absl::DataLossError(absl::StrCat("row ", frame.row, " has ", frame.row_bytes,
                                              " bytes at ", frame.staging_offset, " in round ",
                                              frame.round, ", expected ", row.num_bytes, " at ",
                                              row.staging_offset, " in round ", row.round));
    }
    if (frame.offset != incoming->received || frame.bytes > row.num_bytes - frame.offset ||
        (frame.bytes == 0 && row.num_bytes > 0)) {
      return absl::DataLossError(absl::StrCat("row ", frame.row, ": bytes ", frame.offset, "+",
                                              frame.bytes, " came, expected from ",
                                              incoming->received, " of ", row.num_bytes));
    }
    if (frame.type == RowFrameType::kLanded && !link.shares_memory()) {
      return absl::DataLossError(
          absl::StrCat("row ", frame.row, " is said to have landed in memory that is not shared"));
    }
    return absl::OkStatus();
  }

  // The offset is our own; the frame's length was checked against the row.
  std::span<std::byte> Place(const PostLedger::Incoming& incoming, const RowFrame& frame) {
    return arena_.bytes().subspan(
        static_cast<size_t>(incoming.row.staging_offset + incoming.received),
        static_cast<size_t>(frame.bytes));
  }

  // A checked piece lies in staging: compares its checksum.
  absl::Status TakePiece(PeerLink& link) {
    const RowFrame& frame = link.header();
    PostLedger::Incoming& incoming = *ledger_->Find(link.rank(), frame.row);
    if (cuda::ChecksumOnHost(Place(incoming, frame)) != frame.checksum) {
      return Blame(link.rank(), absl::StrCat("row ", frame.row, ": checksum differs"));
    }
    ledger_->AddReceived(incoming, frame.bytes);
    return absl::OkStatus();
  }

  absl::Status Blame(RankId peer, absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat("post ", last_post_id_, ": rank ", peer.value, ": ", what));
  }

  // Peers that still matter must be alive, and not past this post.
  absl::Status CheckPeers() {
    const auto id = ledger_->post_id();
    const auto past = [id](const PeerLink& link) {
      return (link.ended.has_value() && *link.ended >= id) ||
             (link.posted.has_value() && *link.posted > id);
    };
    const bool suspicious = std::any_of(links_.begin(), links_.end(), [&](const PeerLink& link) {
      return link.gone() || past(link);
    });
    if (!suspicious) return absl::OkStatus();
    const std::vector<RankId> left = ledger_->PeersLeft();
    if (const std::string gone = DescribeGone(left); !gone.empty()) {
      return absl::UnavailableError(absl::StrCat("post ", id, ": ", gone));
    }
    for (const RankId peer : left) {
      if (past(*LinkTo(peer))) {
        return absl::AbortedError(absl::StrCat("post ", id, ": rank ", peer.value, " ended it"));
      }
    }
    return absl::OkStatus();
  }

  // "ranks 2, 3 are gone (connection closed)"; empty when all are there.
  std::string DescribeGone(const std::vector<RankId>& among) {
    std::vector<RankId> gone;
    std::string why;
    for (const RankId peer : among) {
      const PeerLink& link = *LinkTo(peer);
      if (!link.gone()) continue;
      gone.push_back(peer);
      if (why.empty()) why = link.gone_why();
    }
    if (gone.empty()) return "";
    return absl::StrCat(NameRanks(gone), gone.size() == 1 ? " is gone (" : " are gone (", why, ")");
  }

  const RankId rank_;
  const int64_t max_row_bytes_;
  const pid_t owner_;
  StagingArena arena_;
  std::vector<PeerLink> links_;
  std::map<RankId, size_t> index_;    // into links_
  std::optional<PostLedger> ledger_;  // of the open post
  absl::Status error_;                // that Poll keeps returning
  Progress last_progress_;            // of the last ticket
  Ticket ticket_ = 0;
  uint64_t last_post_id_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeHostTransport(const HostTransportOptions& options,
                                                             const Exchange& exchange) {
  EPLB_ASSIGN_OR_RETURN(HostParts parts, SetUpHost(options, exchange));
  return std::make_unique<HostTransport>(options, std::move(parts));
}

}  // namespace eplb
