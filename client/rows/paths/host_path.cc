#include "client/rows/paths/host_path.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/link_transport.h"
#include "client/rows/row_path.h"

namespace eplb {
namespace {

class HostPath : public RowPath {
 public:
  HostPath(StagingArena own, std::map<RankId, StagingArena> mapped)
      : arena_(std::move(own)), mapped_(std::move(mapped)) {}

  std::string_view name() const override { return "host"; }
  std::span<std::byte> staging() override { return arena_.bytes(); }

  absl::Status Open(const RowMoves&, TransferLedger& ledger, LinkSet& links) override {
    ledger_ = &ledger;
    links_ = &links;
    return absl::OkStatus();
  }

  // One piece of every row of the round that has credit and room.
  absl::StatusOr<bool> Advance() override {
    bool moved = false;
    const auto ready = [this](RankId peer) {
      const PeerLink& link = links_->Of(peer);
      return !link.gone() && link.posted == ledger_->post_id();
    };
    std::optional<RankId> blocked;  // rows to it come together
    for (TransferLedger::Outgoing& outgoing : ledger_->CurrentRound(ready)) {
      if (outgoing.done || outgoing.row.to == blocked || !ready(outgoing.row.to)) continue;
      PeerLink& link = links_->Of(outgoing.row.to);
      if (link.has_output()) {  // LinkTransport flushes
        blocked = outgoing.row.to;
        continue;
      }
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

  bool busy() const override { return false; }

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink& link,
                                             const RowMessage& frame) override {
    const bool landed = frame.type == RowMessageType::kLanded;
    if (!landed && frame.type != RowMessageType::kPiece) {
      return DataLoss("received a frame that the host transport does not use");
    }
    if (landed && !mapped_.contains(link.rank())) {
      return DataLoss("row ", frame.row, " was reported as landed in memory that is not shared");
    }
    return PlaceOf(link, frame);
  }

  absl::Status Take(const PeerLink& link, const RowMessage& frame) override {
    if (ledger_->ChecksumOnHost(frame.round, PlaceOf(link, frame)) != frame.checksum) {
      return DataLoss("row ", frame.row, ": checksum differs");
    }
    ledger_->AddReceived(*ledger_->Find(link.rank(), frame.row), frame.bytes);
    return absl::OkStatus();
  }

  // Writes into mapped arenas are over when Advance returns.
  absl::Status Close(bool) override { return absl::OkStatus(); }

 private:
  // The offset is our own; the frame's length was checked against the row.
  std::span<std::byte> PlaceOf(const PeerLink& link, const RowMessage& frame) {
    const RowReceive& row = ledger_->Find(link.rank(), frame.row)->row;
    return arena_.bytes().subspan(static_cast<size_t>(row.staging_offset + frame.offset),
                                  static_cast<size_t>(frame.bytes));
  }

  void SendPiece(PeerLink& link, TransferLedger::Outgoing& outgoing) {
    const RowSend& row = outgoing.row;
    const auto row_bytes = static_cast<int64_t>(row.bytes.size());
    const int64_t bytes = std::min(kRowPieceBytes, row_bytes - outgoing.sent);
    const std::span<const std::byte> piece =
        row.bytes.subspan(static_cast<size_t>(outgoing.sent), static_cast<size_t>(bytes));
    const auto mapped = mapped_.find(link.rank());
    RowMessage frame = ledger_->FrameOf(RowMessageType::kPiece, row, outgoing.sent, bytes,
                                        ledger_->ChecksumOnHost(row.round, piece));
    if (mapped == mapped_.end()) {
      link.Queue(frame, piece);
    } else {
      frame.type = RowMessageType::kLanded;
      if (!piece.empty()) {
        std::memcpy(mapped->second.bytes().data() + row.staging_offset + outgoing.sent,
                    piece.data(), piece.size());
      }
      link.Queue(frame);
    }
    link.Flush();
    ledger_->NoteSent(outgoing, frame.offset, bytes, frame.checksum);
    outgoing.sent += bytes;
    outgoing.announced = true;
    // Now and not at the next turn: a peer that has all it needs may be gone by then.
    if (outgoing.sent == row_bytes && link.has_sent_all()) ledger_->FinishSend(outgoing);
  }

  StagingArena arena_;
  std::map<RankId, StagingArena> mapped_;
  TransferLedger* ledger_ = nullptr;  // ledger of the open post
  LinkSet* links_ = nullptr;
};

}  // namespace

HostPeers MapPeers(LinkParts parts, const TransportOptions& options) {
  HostPeers peers;
  LinkNotes notes;
  for (LinkParts::Peer& peer : parts.peers) {
    const RankId rank = peer.link.rank();
    absl::StatusOr<StagingArena> theirs =
        peer.descriptor.ok()
            ? StagingArena::Map(*std::move(peer.descriptor), peer.link.staging_bytes())
            : peer.descriptor.status();
    if (theirs.ok()) {
      peers.mapped.emplace(rank, *std::move(theirs));
    } else if (options.use_shared_memory) {
      notes.Add(rank, std::string(theirs.status().message()));
    }
    peers.links.push_back(std::move(peer.link));
  }
  notes.Tell(options, "go over the socket");
  return peers;
}

absl::StatusOr<std::unique_ptr<Transport>> MakeHostTransport(const TransportOptions& options,
                                                             const AllGather& all_gather) {
  absl::StatusOr<StagingArena> arena = StagingArena::Make(options.staging_bytes);
  absl::StatusOr<SharedStaging> shared = SharedStaging{};
  if (!arena.ok()) {
    shared = arena.status();
  } else if (options.use_shared_memory) {
    shared->descriptor = arena->fd();
  }
  EPLB_ASSIGN_OR_RETURN(LinkParts parts, SetUpLinks(options, shared, all_gather));
  HostPeers peers = MapPeers(std::move(parts), options);
  return MakeLinkTransport(options.rank, options.max_row_bytes, std::move(peers.links),
                           std::make_unique<HostPath>(*std::move(arena), std::move(peers.mapped)));
}

}  // namespace eplb
