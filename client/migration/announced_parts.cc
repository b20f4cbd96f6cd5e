#include "client/migration/announced_parts.h"

#include "absl/strings/str_cat.h"

namespace eplb {

void AnnouncedParts::Add(RankId from, const RowFrame& frame) {
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
      return absl::DataLossError(absl::StrCat("rank ", row.from.value, ": row ", row.row, ": ",
                                              found->second.num_bytes, " bytes come at ",
                                              part.offset, ", expected ", part.num_bytes));
    }
  }
  return true;
}

uint64_t AnnouncedParts::ChecksumOf(const RowReceive& row, const RowFragment& part) const {
  return parts_.at({row.from, row.row, part.offset}).checksum;
}

}  // namespace eplb
