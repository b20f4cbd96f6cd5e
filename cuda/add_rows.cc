#include "cuda/add_rows.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/copy.h"
#include "cuda/kernels/add_rows_body.h"

namespace eplb::cuda {

absl::Status CheckElements(std::string_view what, std::span<const RowCopy> rows, ElementType type) {
  EPLB_RETURN_IF_ERROR(CheckRowCopies(rows));
  const int64_t element_bytes = ElementBytes(type);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].num_bytes % element_bytes == 0) continue;
    return InvalidInput("row ", i, " of the ", std::string(what), " has ", rows[i].num_bytes,
                        " bytes, expected a multiple of the element's ", element_bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckRowAdditions(std::span<const RowCopy> rows, ElementType type) {
  EPLB_RETURN_IF_ERROR(CheckElements("addition", rows, type));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].num_bytes == 0 || rows[i].destination != nullptr) continue;
    return InvalidInput("row ", i, " of the addition has ", rows[i].num_bytes,
                        " bytes and no destination");
  }
  return absl::OkStatus();
}

absl::Status AddRowsOnHost(std::span<const RowCopy> rows, ElementType type) {
  EPLB_RETURN_IF_ERROR(CheckRowAdditions(rows, type));
  VisitElement(type, [rows](auto element) {
    for (const RowCopy& row : rows) {
      for (int64_t tile = 0; tile < NumCopyTiles(row.num_bytes); ++tile) {
        AddTilePart<decltype(element)>(row, tile, /*thread=*/0, /*num_threads=*/1);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace eplb::cuda
