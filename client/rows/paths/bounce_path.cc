// Copies rows down, sends them, copies them up, and compares the device's sums of both ends.
#include "client/rows/paths/bounce_path.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/rows/link_setup.h"
#include "client/rows/link_transport.h"
#include "client/rows/paths/host_path.h"
#include "client/rows/paths/summed_path.h"

namespace eplb {
namespace {

// Slots of the ring. With two batches in transfer to the device, one in a socket and one free, a
// socket never waits for the device.
constexpr size_t kSlots = 16;
// Limits of rows or pieces that are copied together: 1 MiB takes 40 us at 25 GB/s, longer than to
// add it. A row that is written directly into a peer's arena is never cut.
constexpr int64_t kBounceBytes = int64_t{1} << 20;
constexpr size_t kBounceRows = 256;
// Most pieces that are being copied down or wait for a socket.
constexpr size_t kMaxPieces = 2 * kBounceRows;
// Most batches under way in either direction; each is two batches of its queue.
constexpr size_t kMaxBouncing = 8;
static_assert(2 * kMaxBouncing < cuda::RowQueue::kMaxBatches);
static_assert(kMaxBouncing * kBounceRows < cuda::RowQueue::kMaxRows);

struct MappedArena {
  StagingArena arena;
  std::optional<cuda::RowBuffer> pin;  // if the copy engine reaches it
};

// Memory that the device may read or write while copies are under way.
struct Bounce {
  BounceParts own;
  std::map<RankId, MappedArena> peers = {};  // on this host
};

// Part of a row that is copied down and sent: the whole row if it is written directly into the
// peer's arena, otherwise the part that fits into a slot of the ring.
struct Piece {
  size_t index = 0;  // index of the row in the ledger's outgoing()
  int64_t offset = 0;
  int64_t bytes = 0;
  std::optional<size_t> slot;
  bool is_queued = false;  // on the link
};

class BouncePath : public SummedPath {
 public:
  explicit BouncePath(std::unique_ptr<Bounce> bounce) : bounce_(std::move(bounce)) {}

  ~BouncePath() override {
    // The device may still use this memory, and freeing it would wait for a device that hangs.
    if (!Drain().ok()) (void)bounce_.release();
  }

  std::string_view name() const override { return "host"; }
  std::span<std::byte> staging() override { return bounce_->own.staging.bytes; }

  absl::Status Open(const RowMoves& moves, TransferLedger& ledger, LinkSet& links) override {
    EPLB_RETURN_IF_ERROR(down().Follow(moves.stream));
    EPLB_RETURN_IF_ERROR(up().Follow(moves.stream));
    ledger_ = &ledger;
    links_ = &links;
    sends_.assign(moves.sends.size(), {});
    first_uncut_ = 0;
    free_slots_.clear();
    for (size_t slot = 0; slot < kSlots; ++slot) free_slots_.push_back(slot);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance() override {
    EPLB_ASSIGN_OR_RETURN(const bool started, StartDescents());
    EPLB_ASSIGN_OR_RETURN(const bool is_down, FinishDescents());
    const bool crossed = Cross();
    EPLB_ASSIGN_OR_RETURN(const bool rising, StartAscents());
    EPLB_ASSIGN_OR_RETURN(const bool is_up, FinishChecks(up()));
    return started || is_down || crossed || rising || is_up;
  }

  bool busy() const override { return !descents_.empty() || !checking_.empty(); }

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink& link,
                                             const RowMessage& frame) override {
    if (frame.type == RowMessageType::kLanded) return std::span<std::byte>();
    if (frame.type != RowMessageType::kPiece) {
      return absl::DataLossError("received a frame that the host transport does not use");
    }
    const RowReceive& row = ledger_->Find(link.rank(), frame.row)->row;
    return bounce_->own.arena.bytes().subspan(
        static_cast<size_t>(row.staging_offset + frame.offset), static_cast<size_t>(frame.bytes));
  }

  absl::Status Close(bool done) override {
    absl::Status drained = done ? absl::OkStatus() : Drain();
    descents_.clear();
    crossing_.clear();
    arrived_.clear();
    checking_.clear();
    return drained;
  }

 private:
  struct Send {
    bool has_begun = false;
    int64_t begun = 0;      // bytes that have a piece
    uint64_t checksum = 0;  // sum of the whole row, once its first piece is in host memory
  };
  struct Descent {
    std::vector<Piece> pieces;
    std::vector<size_t> summed = {};   // indices of rows whose first piece it has
    std::optional<int64_t> sums = {};  // batches
    int64_t transfer = 0;
  };
  cuda::RowQueue& down() const { return *bounce_->own.down; }
  cuda::RowQueue& up() const { return *bounce_->own.up; }

  absl::Status Drain() { return DrainBoth(down(), up(), bounce_->own.settle_timeout); }

  bool IsReady(RankId peer) const {
    const PeerLink& link = links_->Of(peer);
    return !link.gone() && link.posted == ledger_->post_id();
  }

  absl::StatusOr<bool> StartDescents() {
    const std::span<const TransferLedger::Outgoing> round =
        ledger_->CurrentRound([this](RankId peer) { return IsReady(peer); });
    bool moved = false;
    while (descents_.size() < kMaxBouncing && NumPieces() < kMaxPieces) {
      Descent next{.pieces = CutPieces(round)};
      if (next.pieces.empty()) break;
      EPLB_RETURN_IF_ERROR(Begin(next));
      descents_.push_back(std::move(next));
      moved = true;
    }
    return moved;
  }

  size_t NumPieces() const {
    size_t count = crossing_.size();
    for (const Descent& descent : descents_) count += descent.pieces.size();
    return count;
  }

  std::vector<Piece> CutPieces(std::span<const TransferLedger::Outgoing> round) {
    while (first_uncut_ < sends_.size() && IsCut(first_uncut_)) ++first_uncut_;
    std::vector<Piece> pieces;
    int64_t bytes = 0;
    const auto begin = static_cast<size_t>(round.data() - ledger_->outgoing().data());
    for (size_t i = std::max(begin, first_uncut_); i < begin + round.size(); ++i) {
      if (bytes >= kBounceBytes || pieces.size() == kBounceRows) break;
      if (IsCut(i) || !IsReady(ledger_->outgoing()[i].row.to)) continue;
      while (!IsCut(i) && bytes < kBounceBytes && pieces.size() < kBounceRows) {
        const std::optional<Piece> piece = CutPiece(i);
        if (!piece.has_value()) return pieces;
        bytes += piece->bytes;
        pieces.push_back(*piece);
      }
    }
    return pieces;
  }

  // True if every byte of a row is in a piece.
  bool IsCut(size_t index) const {
    return sends_[index].has_begun &&
           sends_[index].begun == std::ssize(ledger_->outgoing()[index].row.bytes);
  }

  // Cuts the next piece of a row; none if it has no slot. REQUIRES: not IsCut.
  std::optional<Piece> CutPiece(size_t index) {
    const RowSend& row = ledger_->outgoing()[index].row;
    Send& send = sends_[index];
    const int64_t left = std::ssize(row.bytes) - send.begun;
    Piece piece{.index = index, .offset = send.begun, .bytes = left, .slot = std::nullopt};
    if (!IsPinned(row.to)) {
      if (free_slots_.empty()) return std::nullopt;
      piece.slot = free_slots_.back();
      piece.bytes = std::min(left, kRowPieceBytes);
      free_slots_.pop_back();
    }
    send.has_begun = true;
    send.begun += piece.bytes;
    return piece;
  }

  bool IsPinned(RankId peer) const {
    const auto found = bounce_->peers.find(peer);
    return found != bounce_->peers.end() && found->second.pin.has_value();
  }

  std::span<std::byte> SlotOf(const Piece& piece) const {
    return bounce_->own.ring.bytes.subspan(*piece.slot * kRowPieceBytes,
                                           static_cast<size_t>(piece.bytes));
  }

  std::span<std::byte> PlaceAtPeer(const Piece& piece) {
    const RowSend& row = ledger_->outgoing()[piece.index].row;
    return bounce_->peers.at(row.to).arena.bytes().subspan(
        static_cast<size_t>(row.staging_offset + piece.offset), static_cast<size_t>(piece.bytes));
  }

  absl::Status Begin(Descent& descent) {
    std::vector<cuda::RowCopy> reads;
    std::vector<cuda::RowCopy> copies;
    for (const Piece& piece : descent.pieces) {
      const std::span<const std::byte> row = ledger_->outgoing()[piece.index].row.bytes;
      const std::span<std::byte> to = piece.slot.has_value() ? SlotOf(piece) : PlaceAtPeer(piece);
      copies.push_back({.source = row.data() + piece.offset,
                        .destination = to.data(),
                        .num_bytes = piece.bytes});
      if (piece.offset > 0) continue;
      descent.summed.push_back(piece.index);
      reads.push_back({.source = row.data(), .num_bytes = static_cast<int64_t>(row.size())});
    }
    if (!reads.empty()) {
      EPLB_ASSIGN_OR_RETURN(descent.sums, down().Copy(reads));
    }
    EPLB_ASSIGN_OR_RETURN(descent.transfer, down().Transfer(copies));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> FinishDescents() {
    bool moved = false;
    while (!descents_.empty()) {
      const Descent& descent = descents_.front();
      EPLB_ASSIGN_OR_RETURN(const bool ended, down().Ended(descent.transfer));
      if (!ended) break;
      if (descent.sums.has_value()) {
        const std::vector<uint64_t> checksums = down().TakeChecksums(*descent.sums);
        for (size_t i = 0; i < checksums.size(); ++i) NoteSum(descent.summed[i], checksums[i]);
      }
      crossing_.insert(crossing_.end(), descent.pieces.begin(), descent.pieces.end());
      descents_.pop_front();
      moved = true;
    }
    return moved;
  }

  void NoteSum(size_t index, uint64_t checksum) {
    sends_[index].checksum = checksum;
    const TransferLedger::Outgoing& outgoing = ledger_->outgoing()[index];
    ledger_->NoteSent(outgoing, /*offset=*/0, std::ssize(outgoing.row.bytes), checksum);
  }

  bool Cross() {
    bool moved = false;
    std::vector<Piece> left;
    for (Piece& piece : crossing_) {
      PeerLink& link = links_->Of(ledger_->outgoing()[piece.index].row.to);
      if (!piece.is_queued && !link.has_output()) {
        Queue(link, piece);
        moved = true;
      }
      if (link.has_output()) {  // LinkTransport flushes
        left.push_back(piece);
      } else {
        Finish(link, piece);
        moved = true;  // its slot is free, and its round may be over
      }
    }
    crossing_ = std::move(left);
    return moved;
  }

  void Queue(PeerLink& link, Piece& piece) {
    const RowSend& row = ledger_->outgoing()[piece.index].row;
    RowMessage frame = ledger_->FrameOf(RowMessageType::kLanded, row, piece.offset, piece.bytes,
                                        sends_[piece.index].checksum);
    if (!piece.slot.has_value()) {
      link.Queue(frame);
    } else if (bounce_->peers.contains(row.to)) {
      const std::span<const std::byte> slot = SlotOf(piece);
      std::copy(slot.begin(), slot.end(), PlaceAtPeer(piece).begin());
      link.Queue(frame);
    } else {
      frame.type = RowMessageType::kPiece;
      link.Queue(frame, SlotOf(piece));
    }
    link.Flush();
    piece.is_queued = true;
  }

  // REQUIRES: no byte of the piece is on the link any more.
  void Finish(const PeerLink& link, const Piece& piece) {
    if (piece.slot.has_value()) free_slots_.push_back(*piece.slot);
    TransferLedger::Outgoing& outgoing = ledger_->outgoing()[piece.index];
    const bool is_last = piece.offset + piece.bytes == std::ssize(outgoing.row.bytes);
    if (is_last && !link.gone() && link.has_sent_all()) ledger_->FinishSend(outgoing);
  }

  absl::StatusOr<bool> StartAscents() {
    bool moved = false;
    while (!arrived_.empty() && checking_.size() < kMaxBouncing) {
      Check check;
      std::vector<cuda::RowCopy> copies;
      std::vector<cuda::RowCopy> reads;
      int64_t bytes = 0;
      while (!arrived_.empty() && bytes < kBounceBytes && copies.size() < kBounceRows) {
        const RowReceive& row = IncomingOf(arrived_.front()).row;
        std::byte* const staged = staging().data() + row.staging_offset;
        copies.push_back({.source = bounce_->own.arena.bytes().data() + row.staging_offset,
                          .destination = staged,
                          .num_bytes = row.num_bytes});
        reads.push_back({.source = staged, .num_bytes = row.num_bytes});
        bytes += row.num_bytes;
        check.rows.push_back(arrived_.front());
        arrived_.pop_front();
      }
      EPLB_RETURN_IF_ERROR(up().Transfer(copies).status());
      EPLB_ASSIGN_OR_RETURN(check.batch, up().Copy(reads));
      checking_.push_back(std::move(check));
      moved = true;
    }
    return moved;
  }

  std::unique_ptr<Bounce> bounce_;
  std::vector<Send> sends_;  // one for each of the ledger's outgoing()
  size_t first_uncut_ = 0;   // all previous rows are cut
  std::vector<size_t> free_slots_;
  std::deque<Descent> descents_;
  std::vector<Piece> crossing_;  // in host memory, not sent to the peer
};

// staging: memory of another path; if none, it is allocated here.
absl::StatusOr<BounceParts> Reserve(int64_t num_bytes, std::optional<std::span<std::byte>> staging,
                                    std::unique_ptr<cuda::RowQueue> down,
                                    std::unique_ptr<cuda::RowQueue> up) {
  BounceParts parts;
  EPLB_ASSIGN_OR_RETURN(parts.arena, StagingArena::Make(num_bytes));
  parts.down = std::move(down);
  parts.up = std::move(up);
  EPLB_ASSIGN_OR_RETURN(parts.pin, parts.up->Pin(parts.arena.bytes()));
  EPLB_ASSIGN_OR_RETURN(parts.ring, parts.down->AllocatePinned(kSlots * kRowPieceBytes));
  if (staging.has_value()) {
    parts.staging.bytes = *staging;
  } else {
    EPLB_ASSIGN_OR_RETURN(parts.staging, parts.up->Allocate(num_bytes));
  }
  return parts;
}

}  // namespace

absl::StatusOr<BounceParts> ReserveBounce(int64_t staging_bytes,
                                          std::unique_ptr<cuda::RowQueue> down,
                                          std::unique_ptr<cuda::RowQueue> up) {
  return Reserve(staging_bytes, std::nullopt, std::move(down), std::move(up));
}

absl::StatusOr<std::unique_ptr<Transport>> MakeBounceTransport(const TransportOptions& options,
                                                               BounceParts parts,
                                                               const AllGather& all_gather) {
  SharedStaging shared;
  if (options.use_shared_memory) shared.descriptor = parts.arena.fd();
  EPLB_ASSIGN_OR_RETURN(LinkParts links, SetUpLinks(options, shared, all_gather));
  HostPeers peers = MapPeers(std::move(links), options);
  auto bounce = std::make_unique<Bounce>(Bounce{.own = std::move(parts)});
  LinkNotes notes;
  for (auto& [rank, arena] : peers.mapped) {
    MappedArena& peer = bounce->peers[rank];
    peer.arena = std::move(arena);
    absl::StatusOr<cuda::RowBuffer> pin = bounce->own.down->Pin(peer.arena.bytes());
    if (pin.ok()) {
      peer.pin = *std::move(pin);
    } else {
      notes.Add(rank, std::string(pin.status().message()));
    }
  }
  notes.Tell(options, "are copied by the CPU");
  return MakeLinkTransport(options.rank, options.max_row_bytes, std::move(peers.links),
                           std::make_unique<BouncePath>(std::move(bounce)));
}

absl::StatusOr<std::unique_ptr<RowPath>> MakeBouncePathInto(std::span<std::byte> staging,
                                                            std::unique_ptr<cuda::RowQueue> down,
                                                            std::unique_ptr<cuda::RowQueue> up) {
  EPLB_ASSIGN_OR_RETURN(BounceParts parts, Reserve(static_cast<int64_t>(staging.size()), staging,
                                                   std::move(down), std::move(up)));
  return std::make_unique<BouncePath>(std::make_unique<Bounce>(Bounce{.own = std::move(parts)}));
}

}  // namespace eplb
