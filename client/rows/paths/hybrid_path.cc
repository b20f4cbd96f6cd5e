#include "client/rows/paths/hybrid_path.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb {
namespace {

class HybridPath : public RowPath {
 public:
  explicit HybridPath(HybridPathParts parts)
      : peer_({.path = std::move(parts.peer), .rows = std::nullopt}),
        nccl_({.path = std::move(parts.nccl), .rows = std::nullopt}),
        same_host_(std::move(parts.same_host)) {}

  std::string_view name() const override { return kHybridName; }
  std::span<std::byte> staging() override { return peer_.path->staging(); }

  absl::Status Open(const RowMoves& moves, TransferLedger& ledger, LinkSet& links) override {
    whole_ = &ledger;
    EPLB_RETURN_IF_ERROR(OpenPart(peer_, moves, links));
    return OpenPart(nccl_, moves, links);
  }

  absl::StatusOr<bool> Advance() override {
    EPLB_ASSIGN_OR_RETURN(const bool by_nccl, nccl_.path->Advance());
    EPLB_ASSIGN_OR_RETURN(const bool by_peer, peer_.path->Advance());
    return by_nccl || by_peer;
  }

  bool busy() const override { return peer_.path->busy() || nccl_.path->busy(); }

  std::string Waiting() const override {
    const std::string peer = peer_.path->Waiting();
    const std::string nccl = nccl_.path->Waiting();
    return absl::StrCat(peer, peer.empty() || nccl.empty() ? "" : "; ", nccl);
  }

  absl::StatusOr<std::span<std::byte>> Place(const PeerLink& link,
                                             const RowMessage& frame) override {
    return PartOf(link, frame).path->Place(link, frame);
  }

  absl::Status Take(const PeerLink& link, const RowMessage& frame) override {
    Part& part = PartOf(link, frame);
    EPLB_RETURN_IF_ERROR(part.path->Take(link, frame));
    if (!IsAboutRow(frame)) return absl::OkStatus();
    whole_->Find(link.rank(), frame.row)->arrived =
        part.rows->Find(link.rank(), frame.row)->arrived;
    return absl::OkStatus();
  }

  absl::Status Close(bool done) override {
    absl::Status closed = peer_.path->Close(done);
    closed.Update(nccl_.path->Close(done));
    return closed;
  }

  bool is_whole() const override { return peer_.path->is_whole() && nccl_.path->is_whole(); }

  absl::Status DropShared() override {
    absl::Status dropped = peer_.path->DropShared();
    dropped.Update(nccl_.path->DropShared());
    return dropped;
  }

 private:
  struct Part {
    std::unique_ptr<RowPath> path;
    std::optional<TransferLedger> rows;  // rows of the last post
  };

  bool IsOf(const Part& part, RankId rank) const {
    return same_host_.contains(rank) == (&part == &peer_);
  }

  Part& PartOf(const PeerLink& link, const RowMessage& frame) {
    // The rank that draws a communicator's id sends it to all.
    return IsAboutRow(frame) && IsOf(peer_, link.rank()) ? peer_ : nccl_;
  }

  absl::Status OpenPart(Part& part, const RowMoves& moves, LinkSet& links) {
    RowMoves own{.post_id = moves.post_id,
                 .deadline = moves.deadline,
                 .begin_by = moves.begin_by,
                 .stream = moves.stream,
                 .keep_sums = moves.keep_sums};
    std::copy_if(moves.sends.begin(), moves.sends.end(), std::back_inserter(own.sends),
                 [&](const RowSend& send) { return IsOf(part, send.to); });
    std::copy_if(moves.receives.begin(), moves.receives.end(), std::back_inserter(own.receives),
                 [&](const RowReceive& receive) { return IsOf(part, receive.from); });
    part.rows.emplace(own, *whole_);
    return part.path->Open(own, *part.rows, links);
  }

  Part peer_;
  Part nccl_;
  const std::set<RankId> same_host_;
  TransferLedger* whole_ = nullptr;  // ledger of the open post
};

}  // namespace

std::unique_ptr<RowPath> MakeHybridPath(HybridPathParts parts) {
  return std::make_unique<HybridPath>(std::move(parts));
}

}  // namespace eplb
