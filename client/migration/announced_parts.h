// What the senders of a post have announced to come by NCCL.
#ifndef EPLB_CLIENT_MIGRATION_ANNOUNCED_PARTS_H_
#define EPLB_CLIENT_MIGRATION_ANNOUNCED_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>

#include "absl/status/statusor.h"

#include "client/migration/nccl_groups.h"
#include "client/migration/row_frame.h"
#include "client/migration/transport.h"

namespace eplb {

// Memory: an entry for each part of a row of the post.
class AnnouncedParts {
 public:
  // frame: kComing, as agreed.
  void Add(RankId from, const RowFrame& frame);
  // Whether all parts that a piece brings were announced; `num_seen` of them are known to be, and
  // are not looked at again. receives: as the piece's post. errors: DataLoss when the sender cuts
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

#endif  // EPLB_CLIENT_MIGRATION_ANNOUNCED_PARTS_H_
