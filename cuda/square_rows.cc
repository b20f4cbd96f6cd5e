#include "cuda/square_rows.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "cuda/add_rows.h"
#include "cuda/kernels/square_rows_body.h"

namespace eplb::cuda {
namespace {

constexpr int32_t kBlocksPerMultiprocessor = 2;  // of kSquareLanes threads

template <class Element>
double SquaresOf(const RowCopy& row, std::span<double> lanes) {
  std::fill(lanes.begin(), lanes.end(), 0.0);
  const int64_t num_units = NumSquareUnits(row.num_bytes);
  for (int64_t unit = 0; unit < num_units; ++unit) {
    double& lane = lanes[static_cast<size_t>(unit % kSquareLanes)];
    lane = PlusUnitSquares<Element>(row, unit, lane);
  }
  for (int32_t distance = kSquareLanes / 2; distance > 0; distance /= 2) {
    for (int32_t lane = 0; lane < distance; ++lane) AddLane(lanes.data(), lane, distance);
  }
  return lanes.front();
}

}  // namespace

absl::Status SquareRowsOnHost(std::span<const RowCopy> rows, ElementType type,
                              std::span<double> sums) {
  EPLB_RETURN_IF_ERROR(CheckElements("squares", rows, type));
  if (sums.size() != rows.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("squares of ", rows.size(), " rows have room for ", sums.size(), " sums"));
  }
  VisitElement(type, [&](auto element) {
    std::vector<double> lanes(kSquareLanes);
    for (size_t i = 0; i < rows.size(); ++i) sums[i] = SquaresOf<decltype(element)>(rows[i], lanes);
  });
  return absl::OkStatus();
}

absl::Status CheckSquareArgs(const SquareArgs& args) {
  if (args.num_rows < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("squares of ", args.num_rows, " rows, expected >= 0"));
  }
  if (args.num_rows > 0 && (args.rows == nullptr || args.sums == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("squares of ", args.num_rows, " rows need their table and sums, one is null"));
  }
  return absl::OkStatus();
}

int32_t ChooseSquareBlocks(int32_t num_rows, int32_t num_multiprocessors) {
  return std::min(num_rows, std::max(1, num_multiprocessors) * kBlocksPerMultiprocessor);
}

}  // namespace eplb::cuda
