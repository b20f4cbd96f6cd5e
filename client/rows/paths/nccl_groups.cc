#include "client/rows/paths/nccl_groups.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/staging.h"

namespace eplb {

namespace {

struct PairRow {
  RankId peer;
  int32_t index = 0;
  int32_t row = 0;
  int32_t round = 0;
  int64_t staging_offset = 0;
  int64_t num_bytes = 0;
};

// The rows of each round by their place in staging.
using Rounds = std::map<int32_t, std::vector<PairRow>>;

absl::StatusOr<Rounds> ByRound(const std::vector<PairRow>& rows, const char* verb) {
  Rounds rounds;
  for (const PairRow& row : rows) {
    if (row.staging_offset % kStagingAlignment != 0) {
      return InvalidInput("row ", row.row, " ", verb, " rank ", row.peer.value, ": staging offset ",
                          row.staging_offset, " is no multiple of ", kStagingAlignment);
    }
    std::vector<PairRow>& round = rounds[row.round];
    if (!round.empty() && round.front().peer != row.peer) {
      return InvalidInput("round ", row.round, " ", verb, " ranks ", round.front().peer.value,
                          " and ", row.peer.value, "; NCCL rounds have one of them");
    }
    if (row.num_bytes > 0) round.push_back(row);
  }
  for (auto& [number, round] : rounds) {
    std::ranges::sort(round, [](const PairRow& a, const PairRow& b) {
      return a.staging_offset < b.staging_offset;
    });
  }
  return rounds;
}

class PieceCutter {
 public:
  explicit PieceCutter(int64_t piece_bytes) : piece_bytes_(piece_bytes) {}

  void Add(const PairRow& row) {
    const bool follows = !pieces_.empty() && row.staging_offset == RoundUpToStaging(End());
    if (!follows) Begin(row, row.staging_offset);
    for (int64_t offset = 0; offset < row.num_bytes;) {
      // The place in the piece is that in staging, so that both ends see the same.
      int64_t at = row.staging_offset + offset - pieces_.back().staging_offset;
      if (at >= piece_bytes_) {
        Begin(row, row.staging_offset + offset);
        at = 0;
      }
      NcclPiece& piece = pieces_.back();
      const int64_t bytes = std::min(row.num_bytes - offset, piece_bytes_ - at);
      piece.fragments.push_back(
          {.index = row.index, .offset = offset, .num_bytes = bytes, .at = at});
      piece.num_bytes = at + bytes;
      offset += bytes;
    }
  }

  std::vector<NcclPiece> Take() { return std::move(pieces_); }

 private:
  int64_t End() const { return pieces_.back().staging_offset + pieces_.back().num_bytes; }

  void Begin(const PairRow& row, int64_t staging_offset) {
    pieces_.push_back({.peer = row.peer, .staging_offset = staging_offset});
  }

  const int64_t piece_bytes_;
  std::vector<NcclPiece> pieces_;
};

std::vector<NcclPiece> Cut(const std::vector<PairRow>& rows, int64_t piece_bytes) {
  PieceCutter cutter(piece_bytes);
  for (const PairRow& row : rows) cutter.Add(row);
  return cutter.Take();
}

}  // namespace

absl::StatusOr<std::vector<NcclGroup>> CutIntoGroups(const RowMoves& moves, int64_t piece_bytes) {
  std::vector<PairRow> sent;
  for (const RowSend& send : moves.sends) {
    sent.push_back({.peer = send.to,
                    .index = static_cast<int32_t>(sent.size()),
                    .row = send.row,
                    .round = send.round,
                    .staging_offset = send.staging_offset,
                    .num_bytes = static_cast<int64_t>(send.bytes.size())});
  }
  std::vector<PairRow> received;
  for (const RowReceive& receive : moves.receives) {
    received.push_back({.peer = receive.from,
                        .index = static_cast<int32_t>(received.size()),
                        .row = receive.row,
                        .round = receive.round,
                        .staging_offset = receive.staging_offset,
                        .num_bytes = receive.num_bytes});
  }
  EPLB_ASSIGN_OR_RETURN(const Rounds sends, ByRound(sent, "sends to"));
  EPLB_ASSIGN_OR_RETURN(const Rounds receives, ByRound(received, "receives from"));
  std::map<int32_t, std::vector<NcclGroup>> rounds;
  const auto group_of = [&rounds](int32_t round, size_t k) -> NcclGroup& {
    std::vector<NcclGroup>& groups = rounds[round];
    if (groups.size() <= k) groups.resize(k + 1, {.round = round});
    return groups[k];
  };
  for (const auto& [sides, side] :
       {std::pair{&sends, &NcclGroup::send}, std::pair{&receives, &NcclGroup::receive}}) {
    for (const auto& [number, rows] : *sides) {
      std::vector<NcclPiece> pieces = Cut(rows, piece_bytes);
      for (size_t k = 0; k < pieces.size(); ++k) group_of(number, k).*side = std::move(pieces[k]);
    }
  }
  std::vector<NcclGroup> groups;
  for (auto& [number, round] : rounds) {
    groups.insert(groups.end(), std::make_move_iterator(round.begin()),
                  std::make_move_iterator(round.end()));
  }
  return groups;
}

void AnnouncedParts::Add(RankId from, const RowMessage& frame) {
  parts_[{from, frame.row, frame.offset}] = {.num_bytes = frame.bytes, .checksum = frame.checksum};
}

absl::StatusOr<bool> AnnouncedParts::Covers(const NcclPiece& piece,
                                            std::span<const RowReceive> receives,
                                            size_t& num_seen) const {
  for (; num_seen < piece.fragments.size(); ++num_seen) {
    const RowFragment& part = piece.fragments[num_seen];
    const RowReceive& row = receives[static_cast<size_t>(part.index)];
    const auto found = parts_.find({row.from, row.row, part.offset});
    if (found == parts_.end()) return false;
    if (found->second.num_bytes != part.num_bytes) {
      return DataLoss("rank ", row.from.value, ": row ", row.row, ": ", found->second.num_bytes,
                      " bytes arrive at ", part.offset, ", expected ", part.num_bytes);
    }
  }
  return true;
}

uint64_t AnnouncedParts::ChecksumOf(const RowReceive& row, const RowFragment& part) const {
  return parts_.at({row.from, row.row, part.offset}).checksum;
}

}  // namespace eplb
