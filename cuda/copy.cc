#include "cuda/copy.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/checksum.h"

namespace eplb::cuda {
namespace {

constexpr int32_t kCopyThreads = 256;
constexpr int32_t kCopyBlocksPerMultiprocessor = 4;

}  // namespace

absl::Status CheckRowCopies(std::span<const RowCopy> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].num_bytes < 0) {
      return InvalidInput("row ", i, " of the copy has ", rows[i].num_bytes,
                          " bytes, expected >= 0");
    }
    if (rows[i].num_bytes > 0 && rows[i].source == nullptr) {
      return InvalidInput("row ", i, " of the copy has ", rows[i].num_bytes,
                          " bytes and no source");
    }
  }
  return absl::OkStatus();
}

absl::Status CopyRowsOnHost(std::span<const RowCopy> rows, std::span<uint64_t> checksums) {
  EPLB_RETURN_IF_ERROR(CheckRowCopies(rows));
  if (!checksums.empty() && checksums.size() != rows.size()) {
    return InvalidInput("copy of ", rows.size(), " rows has room for ", checksums.size(),
                        " checksums");
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const RowCopy& row = rows[i];
    const auto num_bytes = static_cast<size_t>(row.num_bytes);
    if (!checksums.empty()) checksums[i] = ChecksumOnHost({row.source, num_bytes});
    // memcpy's pointers must not be null, also where there is nothing to copy.
    if (num_bytes > 0 && row.destination != nullptr) {
      std::memcpy(row.destination, row.source, num_bytes);
    }
  }
  return absl::OkStatus();
}

int64_t TileRows(std::span<const RowCopy> rows, std::span<TiledRow> table) {
  int64_t num_tiles = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    table[i] = {.copy = rows[i], .first_tile = num_tiles};
    num_tiles += NumCopyTiles(rows[i].num_bytes);
  }
  return num_tiles;
}

CopyGrid ChooseCopyGrid(int64_t num_tiles, int32_t num_multiprocessors, int32_t max_blocks) {
  if (num_tiles == 0) return {};
  int64_t most = int64_t{std::max(1, num_multiprocessors)} * kCopyBlocksPerMultiprocessor;
  if (max_blocks > 0) most = std::min(most, int64_t{max_blocks});
  return {.blocks = static_cast<int32_t>(std::min(num_tiles, most)), .threads = kCopyThreads};
}

}  // namespace eplb::cuda
