// Which NCCL groups move a post's rows: equal on the two ends of every transfer without a word
// between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"

#include "client/rows/row_message.h"
#include "client/rows/transport.h"
#include "placement/ids.h"

namespace eplb {

// Part of a row inside a piece.
struct RowFragment {
  int32_t index = 0;   // index of the row in RowMoves::sends or receives
  int64_t offset = 0;  // in the row
  int64_t num_bytes = 0;
  int64_t at = 0;  // in the piece
};

// One contiguous chunk: what one ncclSend or ncclRecv moves.
struct NcclPiece {
  RankId peer;
  int64_t staging_offset = 0;  // in the receiver's staging
  int64_t num_bytes = 0;
  std::vector<RowFragment> fragments;
};

// At most one send and one receive. NCCL cuts big groups in two at places that differ between
// ranks, which then wait for each other in a circle (Megatron-LM #7189, SGLang #7956); a group of
// two operations on 16 channels takes 2 * 16 of the 254 places before a cut.
struct NcclGroup {
  int32_t round = 0;
  std::optional<NcclPiece> send;
  std::optional<NcclPiece> receive;
};

// Rounds in their order. The rows of a round that follow each other in the receiver's staging are
// one run, and padding to 64 bytes does not end it. A run is cut into pieces of at most
// `piece_bytes`; the k-th pieces of the send and of the receive are one group. Every rank waits
// only for groups of a lower (round, k), so no circle can form. Rows without bytes are in no group.
// piece_bytes: a multiple of 64. errors: InvalidArgument for a round with two receivers or two
// senders, for a row that does not begin at a multiple of 64 in staging. cost: O(rows log rows).
absl::StatusOr<std::vector<NcclGroup>> CutIntoGroups(const RowMoves& moves, int64_t piece_bytes);

// Pieces that the senders of a post have announced for NCCL.

// Memory: an entry for each part of a row of the post.
class AnnouncedParts {
 public:
  // frame: kComing, as agreed.
  void Add(RankId from, const RowMessage& frame);
  // True if all parts of a piece were announced. The first `num_seen` of them are known to be and
  // are not checked again. receives: those of the piece's post. errors: DataLoss if the sender cuts
  // the row otherwise.
  absl::StatusOr<bool> Covers(const NcclPiece& piece, std::span<const RowReceive> receives,
                              size_t& num_seen) const;
  // REQUIRES: it was announced.
  uint64_t ChecksumOf(const RowReceive& row, const RowFragment& part) const;
  void Clear() { parts_.clear(); }

 private:
  struct Part {
    int64_t num_bytes = 0;
    uint64_t checksum = 0;
  };
  std::map<std::tuple<RankId, int32_t, int64_t>, Part> parts_;  // by rank, row and offset
};

}  // namespace eplb
