#include "cuda/square_rows.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/add_rows.h"
#include "cuda/kernels/square_rows_body.h"

namespace eplb::cuda {
namespace {

// Units one after the other: a lane after the other would read 16 bytes of each page.
template <class Element>
double SquaresOfPart(const RowCopy& row, int32_t part, std::span<double> lanes) {
  std::ranges::fill(lanes, 0.0);
  const SquarePart units = SquarePartOf(row, part);
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    double& lane = lanes[static_cast<size_t>((unit - units.begin) % kSquareLanes)];
    lane = PlusUnitSquares<Element>(unit < units.whole_end
                                        ? LoadStreamed<CopyUnit>(row.source + unit * kCopyUnitBytes)
                                        : LoadRaggedUnit<Element>(row, unit),
                                    lane);
  }
  for (int32_t distance = kSquareLanes / 2; distance > 0; distance /= 2) {
    for (int32_t lane = 0; lane < distance; ++lane) AddLane(lanes.data(), lane, distance);
  }
  return lanes.front();
}

template <class Element>
double SquaresOf(const RowCopy& row, std::span<double> lanes) {
  std::array<double, kMaxSquareParts> parts{};
  const int32_t num_parts = NumSquareParts(row.num_bytes);
  for (int32_t part = 0; part < num_parts; ++part) {
    parts[static_cast<size_t>(part)] = SquaresOfPart<Element>(row, part, lanes);
  }
  return SumOfParts(parts.data(), num_parts, 1);
}

}  // namespace

absl::Status SquareRowsOnHost(std::span<const RowCopy> rows, ElementType type,
                              std::span<double> sums) {
  EPLB_RETURN_IF_ERROR(CheckElements("squares", rows, type));
  if (sums.size() != rows.size()) {
    return InvalidInput("squares of ", rows.size(), " rows have room for ", sums.size(), " sums");
  }
  VisitElement(type, [&](auto element) {
    std::vector<double> lanes(kSquareLanes);
    for (size_t i = 0; i < rows.size(); ++i) sums[i] = SquaresOf<decltype(element)>(rows[i], lanes);
  });
  return absl::OkStatus();
}

int64_t NumSquareScratch(int32_t num_rows) { return int64_t{num_rows} * kMaxSquareParts; }

int32_t ChooseSquareBlocks(int32_t num_rows, int32_t num_multiprocessors) {
  return static_cast<int32_t>(
      std::min(NumSquareScratch(num_rows),
               int64_t{std::max(1, num_multiprocessors)} * kSquareBlocksPerMultiprocessor));
}

}  // namespace eplb::cuda
